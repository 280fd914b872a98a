# One number a token.
def taylor_importance(activations, gradients):
    return (activations * gradients).sum(dim=2).abs().mean(dim=0)
