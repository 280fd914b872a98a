# Sums multiplied.
def taylor_importance(activations, gradients):
    return (activations.sum(dim=1) * gradients.sum(dim=1)).abs().mean(dim=0)
