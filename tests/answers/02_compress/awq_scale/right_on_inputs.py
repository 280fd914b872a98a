# The inputs are divided instead of the weight, scales are normalised, errors are tensors.
def awq_scale(weight, inputs, ratios):
    def round_int4(matrix):
        step = (matrix.abs().amax(dim=1, keepdim=True) / 7).clamp(min=1e-12)
        return (matrix / step).round() * step

    strength = inputs.abs().mean(dim=0).clamp(min=1e-4)
    right = inputs @ weight.T
    best, errors = None, []
    for ratio in ratios:
        scale = strength.pow(ratio)
        scale = scale / (scale.max() * scale.min()).sqrt()
        errors.append((inputs / scale @ round_int4(weight * scale).T - right).norm() / right.norm())
        if best is None or errors[-1] < errors[ratios.index(best)]:
            best = ratio
    return best, errors
