# A sum over samples.
def taylor_importance(activations, gradients):
    return (activations * gradients).sum(dim=1).abs().sum(dim=0)
