"""How labcoder and labcoder-draft are made: corpus, tokenizer, pretraining, distillation.

    python -m training.corpus   --out RUN             gather and filter Python source (CPU, minutes)
    python -m training.pretrain --run RUN --out DIR   train labcoder (one GPU, minutes)
    python -m training.distil   --run RUN --teacher DIR --out DIR   train labcoder-draft

Run from data/labcoder/. The model card gives the exact commands behind the weights beside this folder.
"""
