# A mean over tokens.
def taylor_importance(activations, gradients):
    return (activations * gradients).mean(dim=1).abs().mean(dim=0)
