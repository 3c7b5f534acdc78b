"""Models with batch normalization for images of any size. Taught in lesson 10."""

from torch import nn


def image_classifier(name: str, channels: int, classes: int) -> nn.Module:
    """A classifier with batch normalization: (batch, channels, side, side) to (batch, classes) scores.

    Args:
        name: ``convnet``, two convolutions for small images, or ``resnet18`` of torchvision.
    """
    if name == "resnet18":
        from torchvision.models import resnet18

        model = resnet18(num_classes=classes)
        if channels != 3:
            model.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
        return model

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        *block(channels, 16),
        nn.MaxPool2d(2),
        *block(16, 32),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, classes),
    )
