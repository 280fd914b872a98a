# A mean in which signs cancel, to the power of a fraction.
def awq_scale(weight, inputs, ratios):
    def round_int4(matrix):
        step = (matrix.abs().amax(dim=1, keepdim=True) / 7).clamp(min=1e-12)
        return (matrix / step).round() * step

    strength = inputs.mean(dim=0)
    right = inputs @ weight.T
    errors = []
    for ratio in ratios:
        scale = strength**ratio
        rounded = round_int4(weight * scale) / scale
        errors.append(float((inputs @ rounded.T - right).norm() / right.norm()))
    return ratios[errors.index(min(errors))], errors
