"""AMC-Loss, Figs. 1 to 6: features on a circle and a sphere, maps of them, Grad-CAM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hardsight import evaluate
from hardsight.data import MemorySource
from hardsight.evaluate import tsne_map
from hardsight.experiments import lab as kit
from hardsight.experiments.amc import _recipes as recipes
from hardsight.geometry import unit_vectors
from hardsight.report.figures import panels
from hardsight.run.loop import borrowed
from hardsight.run.train import TrainResult

_FEATURES = {
    "accuracy": "accuracy, %",
    "homogeneity": "homogeneity of predictions",
    "completeness": "completeness of predictions",
    "cluster_homogeneity": "homogeneity of k-means",
    "cluster_completeness": "completeness of k-means",
    "silhouette": "angular silhouette",
}
_MAPS = {
    "top_share": "share in the strongest fifth",
    "entropy": "entropy",
    "deletion": "deletion area",
    "insertion": "insertion area",
    "empty": "maps that are 0 everywhere",
}
_BATCH = 500
_CLASS_COLOURS = "tab10"
Places = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Setting(recipes.Recipe):
    """Keys of ``amc-figs``; the figures show the first seed.

    Attributes:
        plane_dataset: of the features on a circle and a sphere.
        plane_model: takes ``embedding_width``.
        plane_epochs: of its training; the paper's 150.
        dataset: of the map of features (the paper's is ``svhn``) and of Grad-CAM.
        weights: largest weights of the second loss; all are drawn.
        points: test images in each measure of features, and in the map.
        maps: test images whose Grad-CAM maps are measured.
    """

    plane_dataset: str = "mnist"
    plane_model: str = "mnist_cnn"
    plane_epochs: int = 6
    dataset: str = "cifar10"
    weights: tuple[float, ...] = (0.1, 10.0)
    points: int = 2000
    maps: int = 1000


def _asks(setting: Setting, data: Mapping[str, Any]) -> kit.TablesAndQuestions:
    features = kit.Grid.read(data["features"], setting.seeds, "place", "loss")
    maps = kit.Grid.read(data["maps"], setting.seeds, "loss")
    places = {
        "sphere": features.at(place=f"{setting.plane_dataset}, 3 dimensions"),
        "own": features.at(place=setting.dataset),
        "maps": maps,
    }
    tables = [
        features.table(
            "Features of test images",
            {"place": "Embedding", "loss": "Loss"},
            {title: name for name, title in _FEATURES.items()},
            note="Mean ± standard deviation over seeds. All values are in [0, 1], except the "
            "silhouette in [-1, 1]; larger is more compact and better separated. K-means works on "
            "directions, with as many clusters as classes.",
        ),
        maps.table(
            "Grad-CAM maps of predicted classes",
            {"loss": "Loss"},
            {title: name for name, title in _MAPS.items()},
            note="Mean ± standard deviation over seeds of means over test images. A compact map "
            "has a large share in its strongest fifth of pixels, and a small entropy (as a share "
            "of the largest possible). If a map points at the evidence, the probability falls fast "
            "as the strongest pixels are removed (small deletion area) and rises fast as they are "
            "added (large insertion area).",
        ),
    ]
    gate = setting.gate(
        setting.dataset, places["own"].values("accuracy", loss=recipes.CROSS_ENTROPY)
    )
    return [*tables, kit.networks_table([gate])], [
        question for weight in setting.weights for question in _questions(weight, places, gate.weak)
    ]


def _questions(weight: float, places: Mapping[str, kit.Grid], weak: str) -> list[kit.Question]:
    ours, contrastive = recipes.amc(weight).title, recipes.euclid(weight).title
    asked = (  # what is said, figure, where, measure, rival
        ("makes features on the sphere more compact than cross-entropy does", "Fig. 4", "sphere",
         "silhouette", recipes.CROSS_ENTROPY),
        ("makes features on the sphere more compact than + Euclid does", "Fig. 4", "sphere",
         "silhouette", contrastive),
        ("raises the homogeneity of the predicted classes", "Fig. 5", "own", "homogeneity",
         recipes.CROSS_ENTROPY),
        ("raises the homogeneity of clusters of the features", "Fig. 5", "own",
         "cluster_homogeneity", recipes.CROSS_ENTROPY),
        ("makes Grad-CAM maps more compact than cross-entropy does", "Figs. 2 and 6", "maps",
         "top_share", recipes.CROSS_ENTROPY),
        ("makes Grad-CAM maps more compact than + Euclid does", "Figs. 2 and 6", "maps",
         "top_share", contrastive),
    )  # fmt: skip
    return [
        places[where].question(
            f"AMC-Loss {says} (λ = {weight:g})", paper, measure, {"loss": ours}, {"loss": rival},
            names=(ours, rival), told=f"{(_FEATURES | _MAPS)[measure]}: {{}}",
            weak="" if where == "sphere" else weak,  # another network, of 3 dimensions
        )
        for says, paper, where, measure, rival in asked
    ]  # fmt: skip


@kit.experiment(
    "amc-figs",
    title="What AMC-Loss does to features and to Grad-CAM maps",
    reproduces="AMC-Loss, Figs. 1, 2, 4, 5 and 6",
    scales={
        "smoke": Setting(
            plane_dataset="builtin:digits", plane_model="small_cnn", plane_epochs=1,
            dataset="builtin:digits", weights=(0.1,), points=100, maps=20, seeds=(0,),
            **recipes.SMOKE,
        ),
        "short": Setting(),
    },
    asks=_asks,
)  # fmt: skip
def amc_figs(lab: kit.Lab, setting: Setting) -> kit.Result:
    """Draws what the paper draws, and puts a number with its spread beside every picture.

    Small networks ({plane_model}) with embeddings of 2 and 3 dimensions are trained on
    {plane_dataset} ({plane_epochs} epochs; the paper: 150 epochs). Their test features are drawn on
    a circle and a sphere. The networks of amc-table1 ({network} on {dataset}, {epochs} epochs; the
    paper: 300 epochs) give the t-SNE map of their test features and the Grad-CAM maps of their
    predictions. All train on {limit} training images, and models are selected on a tenth of them.

    Homogeneity and completeness are given for the predicted classes, as in the published code, and
    for a k-means clustering of the directions of the features. Features are measured on {points}
    test images, maps on {maps}. The pictures show one seed, the tables show all.
    """
    features: list[dict[str, Any]] = []
    drawn: dict[str, dict[str, kit.Outputs]] = {}

    def measured(place: str, dataset: str, **changes: Any) -> dict[str, list[TrainResult]]:
        """Train every loss, measure its features, and keep those of the first seed."""
        train = lab.source(dataset, "train", limit=setting.limit)
        test = lab.source(dataset, "test", limit=setting.points)
        nets: dict[str, list[TrainResult]] = {}
        for variant in recipes.variants(setting.weights):
            title = variant.title
            for seed in setting.seeds:
                run = recipes.trained(lab, setting, train, variant, seed=seed, **changes)
                outputs = lab.outputs(run, test)
                numbers = feature_measures(outputs)
                features.append({"place": place, "loss": title, "seed": seed, **numbers})
                drawn.setdefault(place, {}).setdefault(title, outputs)
                nets.setdefault(title, []).append(run)
        return nets

    places = {width: f"{setting.plane_dataset}, {width} dimensions" for width in (2, 3)}
    for width, place in places.items():
        model = {"name": setting.plane_model, "options": {"embedding_width": width}}
        measured(place, setting.plane_dataset, model=model, epochs=setting.plane_epochs)
    nets = measured(setting.dataset, setting.dataset)
    pictured = lab.source(setting.dataset, "test", limit=setting.maps)
    maps = [
        {"loss": title, "seed": seed, **_map_measures(lab, run, pictured)}
        for title, runs in nets.items()
        for seed, run in zip(setting.seeds, runs, strict=True)
    ]
    classes = _class_examples(lab.source(setting.dataset, "test", limit=setting.points))
    cams = {title: _maps(lab, runs[0], classes)[2] for title, runs in nets.items()}
    return kit.Result(
        figures=[
            plane_figure(lab, drawn[places[2]]),
            sphere_figure(lab, drawn[places[3]]),
            tsne_figure(lab, drawn[setting.dataset]),
            cam_figure(lab, classes, cams),
        ],
        data={
            "features": kit.Grid.of(features, "place", "loss").data(),
            "maps": kit.Grid.of(maps, "loss").data(),
        },
    )


def feature_measures(outputs: kit.Outputs) -> dict[str, float]:
    """How compact and pure classes and clusters are, of predictions and of features."""
    directions = unit_vectors(outputs.embeddings)
    predicted = evaluate.agreement(outputs.logits.argmax(dim=1), outputs.labels)
    groups = evaluate.cluster_assignments(directions, outputs.logits.shape[1])
    clustered = evaluate.agreement(groups, outputs.labels)
    return {
        "accuracy": 100 * outputs.accuracy,
        "homogeneity": predicted.homogeneity,
        "completeness": predicted.completeness,
        "cluster_homogeneity": clustered.homogeneity,
        "cluster_completeness": clustered.completeness,
        "silhouette": float(evaluate.angular_silhouette(directions, outputs.labels).mean()),
    }


def _maps(lab: kit.Lab, run: TrainResult, source: MemorySource) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs and predicted classes on the device, and the Grad-CAM maps of these on the CPU."""
    inputs = lab.inputs(run, source)
    with borrowed(run.model, lab.device):
        with torch.no_grad():
            classes = torch.cat([run.model(part).argmax(dim=1) for part in inputs.split(_BATCH)])
        parts = zip(inputs.split(_BATCH), classes.split(_BATCH), strict=True)
        maps = [evaluate.grad_cam(run.model, images, of) for images, of in parts]
    return inputs, classes, torch.cat(maps).cpu()


def _map_measures(lab: kit.Lab, run: TrainResult, source: MemorySource) -> dict[str, float]:
    """Means over images; a map that is 0 everywhere has no compactness and is left out."""
    inputs, classes, maps = _maps(lab, run, source)
    with borrowed(run.model, lab.device):
        deletion, insertion = evaluate.deletion_insertion(
            run.model, inputs, maps.to(lab.device), classes
        )
    values = {
        "top_share": evaluate.top_area_share(maps),
        "entropy": evaluate.map_entropy(maps),
        "deletion": deletion,
        "insertion": insertion,
    }
    return {
        **{name: float(value.double().nanmean()) for name, value in values.items()},
        "empty": float((maps.amax(dim=(1, 2)) == 0).double().mean()),
    }


def _class_examples(source: MemorySource) -> MemorySource:
    """The first example of every class."""
    _, first = np.unique(source.labels, return_index=True)
    return source.subset(first)


def plane_figure(lab: kit.Lab, outputs: Mapping[str, kit.Outputs]) -> kit.Figure:
    """Embeddings of two dimensions as they are, one panel per loss (Fig. 1)."""
    figure, panel_of = _panels(outputs)
    for title, of_loss in outputs.items():
        places = of_loss.embeddings.numpy()
        _points(panel_of[title], places, of_loss)
        panel_of[title].plot(0, 0, "+", color="black", markersize=9)
        reach = 1.05 * float(np.quantile(np.abs(places), 0.995)) or 1.0
        panel_of[title].set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
    return lab.figure(
        figure, "plane",
        caption="Embeddings of two dimensions, a colour per class, the origin marked: classes lie "
        "along directions.",
        alt="Scatter of embeddings in the plane, one panel per loss.",
    )  # fmt: skip


def sphere_figure(lab: kit.Lab, outputs: Mapping[str, kit.Outputs]) -> kit.Figure:
    """Directions of embeddings of three dimensions, seen from one side (Fig. 4)."""
    figure, panel_of = _panels(outputs)
    turn = np.linspace(0, 2 * np.pi, 100)
    for title, of_loss in outputs.items():
        ax, places = panel_of[title], _seen_from_above(unit_vectors(of_loss.embeddings).numpy())
        ax.plot(np.cos(turn), np.sin(turn), color="grey", linewidth=0.8)
        is_behind = places[:, 2] < 0
        _points(ax, places[is_behind], of_loss, rows=is_behind, alpha=0.15)
        _points(ax, places[~is_behind], of_loss, rows=~is_behind)
        ax.set(xlim=(-1.08, 1.08), ylim=(-1.08, 1.08), aspect="equal")
        ax.axis("off")
    return lab.figure(
        figure, "sphere",
        caption="Directions of embeddings of three dimensions on the unit sphere, a colour per "
        "class; points on the far side are pale.",
        alt="Points on a sphere, one panel per loss.",
    )  # fmt: skip


def tsne_figure(lab: kit.Lab, outputs: Mapping[str, kit.Outputs]) -> kit.Figure:
    """A t-SNE map of the embeddings' directions, one panel per loss (Fig. 5)."""
    figure, panel_of = _panels(outputs)
    for title, of_loss in outputs.items():
        lab.step(f"t-SNE: {title}")
        _points(panel_of[title], tsne_map(unit_vectors(of_loss.embeddings)), of_loss)
        panel_of[title].set(xticks=[], yticks=[])
    return lab.figure(
        figure, "tsne",
        caption="t-SNE of the directions of test features, a colour per class. Distances between "
        "groups and sizes of groups mean nothing on such a map.",
        alt="Scatter of features on a map, one panel per loss.",
    )  # fmt: skip


def _panels(outputs: Mapping[str, kit.Outputs]) -> tuple[Any, dict[str, Any]]:
    """A figure, and its panels by the loss that each shows."""
    figure, axes = panels(1, len(outputs), width=2.3, height=2.5)
    for title, axis in zip(outputs, axes, strict=True):
        axis.set_title(title)
    return figure, dict(zip(outputs, axes, strict=True))


def cam_figure(lab: kit.Lab, source: MemorySource, maps: Mapping[str, Tensor]) -> kit.Figure:
    """An image of every class above its Grad-CAM maps, a row per loss (Figs. 2 and 6)."""
    figure, axes = panels(1 + len(maps), len(source), width=0.85, height=0.85)
    grey = source.images.ndim == 3
    for column in range(len(source)):
        image = source.images[column] / 255.0
        axes[column].imshow(image, cmap="gray" if grey else None)
        axes[column].set_title(source.classes[source.labels[column]], fontsize=7)
        behind = image if grey else image.mean(axis=2)
        for row, of_loss in enumerate(maps.values(), start=1):
            ax = axes[row * len(source) + column]
            ax.imshow(behind, cmap="gray")
            ax.imshow(of_loss[column].numpy(), cmap="inferno", alpha=0.65, vmin=0, vmax=1)
    for at, ax in enumerate(axes):
        ax.set(xticks=[], yticks=[])
        for side in ax.spines.values():
            side.set_visible(False)
        if at % len(source) == 0:
            name = ["image", *maps][at // len(source)]
            ax.set_ylabel(name.replace(", ", "\n"), fontsize=7)
    return lab.figure(
        figure, "gradcam",
        caption="The first test image of every class and the Grad-CAM map of its prediction.",
        alt="A grid of images, and below each its map under every loss.",
    )  # fmt: skip


def _points(
    ax: Any, places: Places, outputs: kit.Outputs, *, rows: Any = slice(None), alpha: float = 0.6
) -> None:
    # as pixels: thousands of circles would make the file large
    ax.scatter(
        places[:, 0], places[:, 1], c=outputs.labels.numpy()[rows] % 10, cmap=_CLASS_COLOURS, s=4,
        alpha=alpha, linewidths=0, vmin=0, vmax=9, rasterized=True,
    )  # fmt: skip


def _seen_from_above(directions: Places) -> Places:
    """Coordinates that look down a little, so that no axis is hidden behind another."""
    turn, tilt = np.deg2rad(30), np.deg2rad(-55)
    about_z = np.array(
        [[np.cos(turn), -np.sin(turn), 0], [np.sin(turn), np.cos(turn), 0], [0, 0, 1]]
    )
    about_x = np.array(
        [[1, 0, 0], [0, np.cos(tilt), -np.sin(tilt)], [0, np.sin(tilt), np.cos(tilt)]]
    )
    turned: Places = directions @ (about_x @ about_z).T
    return turned
