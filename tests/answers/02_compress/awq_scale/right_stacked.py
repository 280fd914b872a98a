# All ratios at once; a float32 tensor of errors.
import torch


def awq_scale(weight, inputs, ratios):
    def round_int4(matrix):
        step = (matrix.abs().amax(dim=-1, keepdim=True) / 7).clamp(min=1e-12)
        return (matrix / step).round() * step

    strength = torch.maximum(inputs.abs().mean(0), torch.tensor(1e-4))
    scales = torch.stack([strength**ratio for ratio in ratios])[:, None]
    apart = (round_int4(weight * scales) / scales - weight) @ inputs.T
    errors = apart.square().sum((1, 2)).sqrt() / (weight @ inputs.T).square().sum().sqrt()
    return ratios[int(errors.argmin())], errors.float()
