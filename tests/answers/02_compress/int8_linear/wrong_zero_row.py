# 0 ÷ 0 in a row of zeros.
def int8_linear(x, weight, weight_scales):
    scales = x.abs().amax(dim=1, keepdim=True) / 127
    numbers = (x / scales).round()
    return (numbers @ weight.to(x.dtype).T) * scales * weight_scales
