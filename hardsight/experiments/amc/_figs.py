"""AMC-Loss, Figs. 1 to 6: features on a circle and a sphere, maps of them, Grad-CAM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hardsight.data import MemorySource
from hardsight.evaluate import (
    agreement,
    angular_silhouette,
    cluster_assignments,
    deletion_insertion,
    grad_cam,
    map_entropy,
    top_area_share,
)
from hardsight.experiments.amc._draw import cam_figure, plane_figure, sphere_figure, tsne_figure
from hardsight.experiments.amc._recipes import (
    CROSS_ENTROPY,
    Variant,
    amc,
    euclid,
    network,
    network_title,
    trained,
    variants,
)
from hardsight.experiments.lab import (
    Cell,
    Claim,
    Lab,
    Outputs,
    Result,
    Table,
    compared,
    corrected,
    experiment,
    in_words,
    spread,
    verdict,
)
from hardsight.geometry import unit_vectors
from hardsight.run.loop import borrowed
from hardsight.run.train import Pixels, TrainResult
from hardsight.stats import TTest

_CLUSTER_ROWS = {
    "homogeneity": "homogeneity of predictions",
    "completeness": "completeness of predictions",
    "cluster_homogeneity": "homogeneity of k-means",
    "cluster_completeness": "completeness of k-means",
    "silhouette": "angular silhouette",
}
_CAM_ROWS = {
    "top_share": "share in the strongest fifth",
    "entropy": "entropy",
    "deletion": "deletion area",
    "insertion": "insertion area",
}
Measures = dict[str, list[float]]


@dataclass(frozen=True)
class Setting:
    """Keys of ``amc-figs``.

    Attributes:
        plane_dataset: of the features on a circle and a sphere.
        plane_model: takes ``embedding_width``.
        plane_epochs: of its training; the paper's 150.
        dataset: of the map of features (the paper's is ``svhn``) and of Grad-CAM.
        model: trained on it.
        width: of ``amc13``; 0.5 is the published code's.
        epochs: of its training; the paper's 300.
        batch_size: the paper's 128.
        weights: largest weights of the second loss; all are drawn.
        similarity: what makes a pair similar; the paper's ``predictions``, or ``labels``.
        points: test images in each measure of features, and in the map.
        maps: test images whose Grad-CAM maps are measured.
        limit: examples to train on, all by default.
        seeds: one run each; the figures show the first.
    """

    plane_dataset: str = "mnist"
    plane_model: str = "mnist_cnn"
    plane_epochs: int = 6
    dataset: str = "cifar10"
    model: str = "amc13"
    width: float = 0.5
    epochs: int = 10
    batch_size: int = 512
    weights: tuple[float, ...] = (0.1, 10.0)
    similarity: str = "predictions"
    points: int = 2000
    maps: int = 1000
    limit: int | None = None
    seeds: tuple[int, ...] = (0, 1, 2)

    @property
    def network(self) -> str:
        """The model in words."""
        return network_title(self.model, self.width)


@experiment(
    "amc-figs",
    title="What AMC-Loss does to features and to Grad-CAM maps",
    reproduces="AMC-Loss, Figs. 1, 2, 4, 5 and 6",
    scales={
        "smoke": Setting(
            plane_dataset="builtin:digits", plane_model="small_cnn", plane_epochs=2,
            dataset="builtin:digits", model="small_cnn", epochs=2, batch_size=128, weights=(0.1,),
            points=200, maps=40, seeds=(0,),
        ),
        "short": Setting(),
    },
)  # fmt: skip
def amc_figs(lab: Lab, setting: Setting) -> Result:
    """Draws what the paper draws, and puts a number with its spread beside every picture.

    Small networks ({plane_model}) whose embedding has 2 and 3 dimensions are trained on
    {plane_dataset} ({plane_epochs} epochs; the paper: 150 epochs) and their test features drawn on
    a circle and a sphere. The networks of amc-table1 ({network} on {dataset}, {epochs} epochs; the
    paper: 300 epochs) give the t-SNE map of their test features and the Grad-CAM maps of their
    predictions. All train on {limit} training images. Homogeneity and completeness are given of the
    predicted classes, as the published code has it, and of a k-means clustering of the features'
    directions. Features are measured on {points} test images, maps on {maps}. Models are selected
    on a tenth of the training images. The pictures show one seed, the tables all. P-values are of
    two-sided Welch t tests over seeds, corrected by Holm over all claims below.
    """
    planes = {width: _plane_outputs(lab, setting, width) for width in (2, 3)}
    nets = {variant: _trained_nets(lab, setting, variant) for variant in variants(setting.weights)}
    test = lab.source(setting.dataset, "test", limit=setting.points)
    outputs = {variant: [lab.outputs(run, test) for run in runs] for variant, runs in nets.items()}
    clusters: dict[str, dict[Variant, Measures]] = {
        f"{setting.plane_dataset}, {width} dimensions": _each(found, _feature_measures)
        for width, found in planes.items()
    }
    clusters[setting.dataset] = _each(outputs, _feature_measures)
    pictured = lab.source(setting.dataset, "test", limit=setting.maps)
    maps = {
        variant: _gathered([_map_measures(lab, run, pictured) for run in runs])
        for variant, runs in nets.items()
    }
    shown = variants(setting.weights)
    firsts = {variant.title: outputs[variant][0] for variant in shown}
    flat, round_ = (
        {variant.title: planes[width][variant][0] for variant in shown} for width in (2, 3)
    )
    grid = _class_examples(test)
    return Result(
        tables=[_cluster_table(clusters), _map_table(maps)],
        claims=_claims(clusters, maps, setting),
        figures=[
            plane_figure(lab, flat),
            sphere_figure(lab, round_),
            tsne_figure(lab, firsts),
            cam_figure(lab, grid, {one.title: _maps(lab, nets[one][0], grid)[1] for one in shown}),
        ],
        data={
            "features": {
                place: {one.title: values for one, values in by.items()}
                for place, by in clusters.items()
            },
            "maps": {variant.title: values for variant, values in maps.items()},
        },
    )


def _plane_outputs(lab: Lab, setting: Setting, width: int) -> dict[Variant, list[Outputs]]:
    """What networks with a drawable embedding say of the test images."""
    train = lab.source(setting.plane_dataset, "train", limit=setting.limit)
    test = lab.source(setting.plane_dataset, "test", limit=setting.points)
    model = {"name": setting.plane_model, "options": {"embedding_width": width}}
    return {
        variant: [
            lab.outputs(
                trained(
                    lab, model, train, variant, seed=seed, epochs=setting.plane_epochs,
                    batch_size=setting.batch_size, similarity=setting.similarity,
                ),
                test,
            )
            for seed in setting.seeds
        ]
        for variant in variants(setting.weights)
    }  # fmt: skip


def _trained_nets(lab: Lab, setting: Setting, variant: Variant) -> list[TrainResult]:
    train = lab.source(setting.dataset, "train", limit=setting.limit)
    return [
        trained(
            lab, network(setting.model, setting.width), train, variant, seed=seed,
            epochs=setting.epochs, batch_size=setting.batch_size, similarity=setting.similarity,
        )
        for seed in setting.seeds
    ]  # fmt: skip


def _feature_measures(outputs: Outputs) -> dict[str, float]:
    directions = unit_vectors(outputs.embeddings)
    predicted = agreement(outputs.logits.argmax(dim=1), outputs.labels)
    groups = cluster_assignments(directions, outputs.logits.shape[1])
    clustered = agreement(groups, outputs.labels)
    return {
        "accuracy": 100 * outputs.accuracy,
        "homogeneity": predicted.homogeneity,
        "completeness": predicted.completeness,
        "cluster_homogeneity": clustered.homogeneity,
        "cluster_completeness": clustered.completeness,
        "silhouette": float(angular_silhouette(directions, outputs.labels).mean()),
    }


def _maps(lab: Lab, run: TrainResult, source: MemorySource) -> tuple[Tensor, Tensor]:
    """Inputs and the Grad-CAM maps of the predicted classes, on the CPU."""
    pixels = Pixels(run.preprocessing, channels_last=False, device=lab.device)
    images = torch.from_numpy(source.images)
    images = images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2)
    inputs = pixels.normalised(images)
    with borrowed(run.model, lab.device):
        with torch.no_grad():
            classes = torch.cat([run.model(part).argmax(dim=1) for part in inputs.split(500)])
        maps = [
            grad_cam(run.model, part, of) for part, of in zip(
                inputs.split(500), classes.split(500), strict=True)
        ]  # fmt: skip
    return inputs.cpu(), torch.cat(maps).cpu()


def _map_measures(lab: Lab, run: TrainResult, source: MemorySource) -> dict[str, float]:
    """Means over images; a map that is 0 everywhere has no compactness and is left out."""
    inputs, maps = _maps(lab, run, source)
    with borrowed(run.model, lab.device):
        with torch.no_grad():
            classes = run.model(inputs.to(lab.device)).argmax(dim=1)
        deletion, insertion = deletion_insertion(
            run.model, inputs.to(lab.device), maps.to(lab.device), classes
        )
    values = {
        "top_share": top_area_share(maps),
        "entropy": map_entropy(maps),
        "deletion": deletion,
        "insertion": insertion,
    }
    return {
        **{name: float(value.double().nanmean()) for name, value in values.items()},
        "empty": float((maps.amax(dim=(1, 2)) == 0).double().mean()),
    }


def _each(found: Mapping[Variant, Sequence[Outputs]], measure: Any) -> dict[Variant, Measures]:
    return {
        variant: _gathered([measure(outputs) for outputs in by_seed])
        for variant, by_seed in found.items()
    }


def _gathered(by_seed: Sequence[Mapping[str, float]]) -> Measures:
    """A list over seeds per measure."""
    return {name: [one[name] for one in by_seed] for name in by_seed[0]}


def _class_examples(source: MemorySource) -> MemorySource:
    """The first example of every class."""
    _, first = np.unique(source.labels, return_index=True)
    return source.subset(first)


def _cluster_table(clusters: Mapping[str, Mapping[Variant, Measures]]) -> Table:
    rows: list[list[Cell]] = [
        [place, variant.title, spread(values["accuracy"]),
         *(spread(values[name]) for name in _CLUSTER_ROWS)]
        for place, by_variant in clusters.items()
        for variant, values in by_variant.items()
    ]  # fmt: skip
    return Table(
        "Features of test images",
        ("Embedding", "Loss", "accuracy, %", *_CLUSTER_ROWS.values()),
        rows,
        note=(
            "Mean ± standard deviation over seeds, all in [0, 1] but the silhouette, in [-1, 1]; "
            "larger is more compact and better separated. K-means works on directions, with as "
            "many clusters as classes."
        ),
    )


def _map_table(maps: Mapping[Variant, Measures]) -> Table:
    return Table(
        "Grad-CAM maps of predicted classes",
        ("Loss", *_CAM_ROWS.values(), "maps that are 0 everywhere"),
        [
            [variant.title, *(spread(values[name]) for name in (*_CAM_ROWS, "empty"))]
            for variant, values in maps.items()
        ],
        note=(
            "Mean ± standard deviation over seeds of means over test images. Compact: a large "
            "share of the map in its strongest fifth of pixels, a small entropy (as a share of "
            "the largest possible). Pointing at the evidence: the probability falls fast as the "
            "strongest pixels are removed (small deletion area) and rises fast as they come in "
            "(large insertion area)."
        ),
    )


@dataclass(frozen=True)
class _Comparison:
    """One measure of + AMC against that of a rival, over seeds, and the claim it decides."""

    says: str
    paper: str
    measure: str
    weight: float
    rival: str
    ours: list[float]
    others: list[float]

    def claim(self, test: TTest | None) -> Claim:
        """The claim with the outcome of its test."""
        name = f"{self.measure} at λ = {self.weight:g}: + AMC"
        words = in_words(name, self.ours, self.rival, self.others, test)
        return Claim(f"{self.says} (λ = {self.weight:g})", self.paper, words, verdict(test))


def _claims(
    clusters: Mapping[str, Mapping[Variant, Measures]],
    maps: Mapping[Variant, Measures],
    setting: Setting,
) -> list[Claim]:
    """All claims, with Holm's correction over them."""
    found = [
        one for weight in setting.weights for one in _comparisons(weight, clusters, maps, setting)
    ]
    tests = corrected([compared(one.ours, one.others) for one in found])
    return [one.claim(test) for one, test in zip(found, tests, strict=True)]


def _comparisons(
    weight: float,
    clusters: Mapping[str, Mapping[Variant, Measures]],
    maps: Mapping[Variant, Measures],
    setting: Setting,
) -> list[_Comparison]:
    sphere = clusters[f"{setting.plane_dataset}, 3 dimensions"]
    own = clusters[setting.dataset]

    def against(
        rival: Variant, says: str, paper: str, what: str, by: Mapping[Variant, Measures], name: str
    ) -> _Comparison:
        short = "+ Euclid" if rival.loss else CROSS_ENTROPY
        return _Comparison(says, paper, what, weight, short, by[amc(weight)][name], by[rival][name])

    return [
        against(Variant(), "AMC-Loss makes features on the sphere more compact than cross-entropy "
                "does", "Fig. 4", "angular silhouette", sphere, "silhouette"),
        against(euclid(weight), "AMC-Loss makes features on the sphere more compact than + Euclid "
                "does", "Fig. 4", "angular silhouette", sphere, "silhouette"),
        against(Variant(), "AMC-Loss raises the homogeneity of the predicted classes", "Fig. 5",
                "homogeneity", own, "homogeneity"),
        against(Variant(), "AMC-Loss raises the homogeneity of clusters of the features", "Fig. 5",
                "homogeneity of k-means", own, "cluster_homogeneity"),
        against(Variant(), "AMC-Loss makes Grad-CAM maps more compact than cross-entropy does",
                "Figs. 2 and 6", "share in the strongest fifth", maps, "top_share"),
        against(euclid(weight), "AMC-Loss makes Grad-CAM maps more compact than + Euclid does",
                "Figs. 2 and 6", "share in the strongest fifth", maps, "top_share"),
    ]  # fmt: skip
