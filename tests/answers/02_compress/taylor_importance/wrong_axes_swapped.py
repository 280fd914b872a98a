# Samples are summed, tokens averaged.
def taylor_importance(activations, gradients):
    return (activations * gradients).sum(dim=0).abs().mean(dim=0)
