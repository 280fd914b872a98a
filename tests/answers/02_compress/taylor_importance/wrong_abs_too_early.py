# Token by token.
def taylor_importance(activations, gradients):
    return (activations * gradients).abs().sum(dim=1).mean(dim=0)
