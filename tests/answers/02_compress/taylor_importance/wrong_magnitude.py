# The mean |activation|.
def taylor_importance(activations, gradients):
    return activations.abs().mean(dim=(0, 1))
