"""The models of the training rows in PyTorch, for `torch_peer.py` and `torch_devices.py`."""

import torch.nn.functional as F
from torch import nn


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)
        )

    def forward(self, images):
        return self.layers(images.flatten(1))


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        block = lambda a, b: [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2)]
        self.blocks = nn.Sequential(*block(1, 32), *block(32, 64))
        self.head = nn.Sequential(nn.Linear(3136, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, images):
        return self.head(self.blocks(images.unsqueeze(1)).flatten(1))


class Block(nn.Module):
    def __init__(self, source, to, stride):
        super().__init__()
        conv = lambda a, b, size, stride: nn.Conv2d(a, b, size, stride, size // 2, bias=False)
        self.conv1, self.norm1 = conv(source, to, 3, stride), nn.BatchNorm2d(to)
        self.conv2, self.norm2 = conv(to, to, 3, 1), nn.BatchNorm2d(to)
        other = stride != 1 or source != to
        self.around = nn.Sequential(conv(source, to, 1, stride), nn.BatchNorm2d(to)) if other else nn.Identity()

    def forward(self, x):
        around = self.around(x)
        x = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(x)) + around)


class ResNet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        blocks, source = [], 64
        for to, stride in [(64, 1), (128, 2), (256, 2), (512, 2)]:
            blocks += [Block(source, to, stride), Block(to, to, 1)]
            source = to
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(512, 1000)

    def forward(self, images):
        x = F.max_pool2d(F.relu(self.norm(self.stem(images))), 3, 2, 1)
        return self.head(F.adaptive_avg_pool2d(self.blocks(x), 1).flatten(1))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(768, 768) for _ in range(4))
        self.inner, self.outer = nn.Linear(768, 3072), nn.Linear(3072, 768)
        self.norm_1, self.norm_2 = nn.LayerNorm(768), nn.LayerNorm(768)

    def forward(self, x):
        y = self.norm_2(x)
        heads = lambda t: t.unflatten(2, (12, 64)).transpose(1, 2)
        attended = F.scaled_dot_product_attention(heads(self.query(y)), heads(self.key(y)), heads(self.value(y)))
        x = x + self.output(attended.transpose(1, 2).flatten(2))
        return x + self.outer(F.gelu(self.inner(self.norm_1(x))))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(Layer() for _ in range(4)))

    def forward(self, x):
        return self.layers(x)


