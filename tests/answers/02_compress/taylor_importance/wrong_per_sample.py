# One number a sample.
def taylor_importance(activations, gradients):
    return (activations * gradients).sum(dim=1).abs().mean(dim=1)
