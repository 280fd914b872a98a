# Token by token, averaged over all.
def taylor_importance(activations, gradients):
    return (activations * gradients).abs().mean(dim=(0, 1))
