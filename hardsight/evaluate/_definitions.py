"""Definitions of the numbers on an evaluation card, as the card shows them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Definition:
    """The meaning of one number.

    Attributes:
        title: name of the number on the card.
        meaning: what the number is, with its range and direction.
        better: ``"higher"``, ``"lower"``, or empty if neither is better.
    """

    title: str
    meaning: str
    better: str = ""


DEFINITIONS = {
    "top1": Definition(
        "Accuracy",
        "Share of examples whose largest logit is that of their label. An example with a NaN or "
        "infinite output counts as wrong. Interval: Wilson, 95%.",
        "higher",
    ),
    "balanced": Definition(
        "Mean class accuracy",
        "Mean of the accuracies of the classes that have examples: every class counts the same.",
        "higher",
    ),
    "class_accuracy": Definition(
        "Accuracy of a class",
        "Share of the class's examples that are predicted as it. Interval: Wilson, 95%.",
        "higher",
    ),
    "shots": Definition(
        "Many, medium, few-shot accuracy",
        "Accuracy on the examples of classes with more than 100, 20 to 100, and fewer than 20 "
        "training examples. Interval: Wilson, 95%.",
        "higher",
    ),
    "groups": Definition(
        "Accuracy by group",
        "Share of a group's examples that is predicted right (Wilson, 95%), and what it would be "
        "if its examples of each class were right as often as all of that class. p: chance of a "
        "difference as large if errors fell within classes at random, bounded by a binomial of the "
        "same mean (Hoeffding 1956), corrected for all groups and questions by Holm's method.",
    ),
    "slices": Definition(
        "Worst slices",
        "Values of attributes, pairs of them, and values within a class, in which errors are more "
        "frequent than the classes explain. p is corrected for all slices with enough examples: in "
        "a fair world the chance to find any is at most 5%.",
    ),
    "margin": Definition(
        "Margin",
        "Logit of the labelled class minus the largest other logit: above 0 the prediction is "
        "right. Margins of two models compare only if their logits have the same scale.",
        "higher",
    ),
    "energy": Definition(
        "Conditional energy",
        "E(y|x), the negative logit of the labelled class. Lower energy is a stronger claim for "
        "the label. Shown per class: quartiles over its examples.",
    ),
    "norm": Definition(
        "Feature norm", "Length of the vector that enters the classifier layer, at least 0."
    ),
    "angle": Definition(
        "Angle to own class",
        "Angle between an example's features and its class's row of the classifier layer, in "
        "radians from 0 to pi. The bias plays no part.",
        "lower",
    ),
    "auroc": Definition(
        "AUROC",
        "Chance that a foreign example has a larger indicator than an own one; equal values "
        "count half. 0.5 is chance. Interval: DeLong, 95%.",
        "higher",
    ),
    "aupr_in": Definition(
        "AUPR in",
        "Average precision with own examples as positives; equal values count as one step.",
        "higher",
    ),
    "aupr_out": Definition(
        "AUPR out",
        "Average precision with foreign examples as positives; equal values count as one step.",
        "higher",
    ),
    "fpr95": Definition(
        "FPR95",
        "Share of foreign examples accepted by the strictest threshold that accepts at least 95% "
        "of the own ones.",
        "lower",
    ),
    "min_energy": Definition(
        "Minimum conditional energy", "OOD indicator: the smallest E(y|x), minus the largest logit."
    ),
    "free_energy": Definition(
        "Free energy", "OOD indicator: minus the log of the summed exponentials of all logits."
    ),
    "max_probability": Definition(
        "Maximum probability",
        "OOD indicator: minus the log of the largest softmax probability, which ranks as the "
        "probability itself does but does not round to 1.",
    ),
    "avc": Definition(
        "Angular visual confidence",
        "OOD indicator: minus the largest share of closeness (pi minus angle) that an example "
        "gives any class. Only angles count, not norms.",
    ),
    "ece": Definition(
        "ECE",
        "Expected calibration error: mean gap of confidence and accuracy over 15 bins of equal "
        "width, weighted by their examples. The last bin is closed: a confidence of 1 is in it.",
        "lower",
    ),
    "adaptive_ece": Definition(
        "Adaptive ECE",
        "The same over 15 bins of equally many examples; equal confidences stay together.",
        "lower",
    ),
    "brier": Definition(
        "Brier score",
        "Mean squared distance of the probabilities from the one-hot label, from 0 to 2. Of the "
        "examples that no temperature is fitted on, everywhere on the card.",
        "lower",
    ),
    "nll": Definition(
        "NLL",
        "Mean negative log-probability of the label, in nats, at least 0. Of the examples that no "
        "temperature is fitted on, everywhere on the card.",
        "lower",
    ),
    "temperature": Definition(
        "Temperature",
        "What the logits are divided by so that the labels of a validation part become most "
        "likely, at least 0.05, which it is if all of them are right already. Above 1 the model "
        "was too sure. All calibration numbers, before and after, are of the other examples.",
    ),
    "aurc": Definition(
        "AURC",
        "Area under the risk-coverage curve: the mean error rate of the accepted examples over all "
        "numbers of them, if the least certain are refused first. Certainty is that of the "
        "indicator beside it; equal values count as one step. Of the examples that nothing is "
        "fitted on.",
        "lower",
    ),
    "open_aurc": Definition(
        "AURC, open set",
        "The same with the foreign examples among the own ones: accepting one of them is an error, "
        "whatever it is predicted as.",
        "lower",
    ),
    "risk_coverage": Definition(
        "Risk-coverage curve",
        "Error rate of the accepted examples against the share that is accepted, the most certain "
        "first. At 100% it is the error rate of the model.",
    ),
    "rejection": Definition(
        "Coverage at the wanted error rate",
        "Share of examples accepted by the threshold that accepts most while the error rate among "
        "them stays below the wanted one: with a chance of 95% over the draw of the validation "
        "part, for new examples of the same kind (Clopper and Pearson at 20 coverages, Bonferroni; "
        "Geifman and El-Yaniv 2017). It is chosen on the validation part; coverage and error rate "
        "are those of the other examples, with Wilson's interval.",
        "higher",
    ),
    "reliability": Definition(
        "Reliability diagram",
        "Accuracy against mean confidence in each bin; on the diagonal the model is as right as "
        "it claims. The area of a dot grows with its examples.",
    ),
    "fgsm": Definition(
        "FGSM",
        "Accuracy after one step of the gradient's sign, every pixel changed by at most epsilon "
        "on the scale 0 to 1, within the valid range. An example counts as right if it is right "
        "both clean and attacked, so epsilon 0 is the clean accuracy.",
        "higher",
    ),
    "pgd_linf": Definition(
        "PGD, L-infinity",
        "As FGSM, by many small steps of cross-entropy, each projected back into the box.",
        "higher",
    ),
    "pgd_l2": Definition(
        "PGD, L2",
        "Accuracy after many steps inside a ball: the Euclidean length of the change of all "
        "pixels (scale 0 to 1) is at most epsilon.",
        "higher",
    ),
    "masking": Definition(
        "Gradient-masking checks",
        "A model may look robust because its gradients are useless, not because its decisions are "
        "stable. Each check repeats PGD with a stronger search on the same examples at one "
        "epsilon. If it breaks more than 5% of the examples on top (McNemar, p below 0.05), the "
        "accuracy above overstates robustness. At an epsilon of 1 hardly anything may survive.",
    ),
    "worst": Definition(
        "Worst of all searches",
        "Share of examples that stay right under every search at this epsilon.",
        "higher",
    ),
    "probe": Definition(
        "Linear probe",
        "Accuracy of a new logistic regression trained on the frozen, standardised features. It "
        "judges the representation apart from the model's own classifier layer.",
        "higher",
    ),
    "kmeans": Definition(
        "Clusters of features",
        "Homogeneity, completeness and V-measure of k-means groups of the features, one group per "
        "class; the labels are not used to find the groups.",
        "higher",
    ),
    "predictions": Definition(
        "Agreement of predictions",
        "The same three measures with the predicted classes as groups. This is what the published "
        "AMC code reports; it is accuracy in other words, not a property of clusters.",
        "higher",
    ),
    "silhouette": Definition(
        "Silhouette in angle",
        "Mean of (b - a) / max(a, b), with a the mean angle to the labelled class's examples and b "
        "the smallest mean angle to another class's; from -1 to 1.",
        "higher",
    ),
    "tsne": Definition(
        "t-SNE map",
        "Places on a plane that keep neighbours together. Distances between groups and their "
        "sizes mean nothing.",
    ),
    "sphere": Definition(
        "Sphere",
        "Directions of embeddings of width 2 or 3, as they are; nothing is projected but the far "
        "side of the sphere behind the near one.",
    ),
    "top_share": Definition(
        "Share in the top fifth",
        "Share of a Grad-CAM map that is in its strongest 20% of pixels: 0.2 is flat, 1 is "
        "compact. The map explains the predicted class.",
    ),
    "entropy": Definition(
        "Map entropy",
        "Entropy of a Grad-CAM map over pixels as a share of the largest possible: 0 is one "
        "pixel, 1 is flat.",
    ),
    "deletion": Definition(
        "Deletion",
        "Area under the predicted class's probability while pixels are replaced by the image's "
        "mean, the strongest of the map first.",
        "lower",
    ),
    "insertion": Definition(
        "Insertion",
        "The same while pixels come in over the image's mean, the strongest first.",
        "higher",
    ),
    "grad_cam": Definition(
        "Grad-CAM",
        "Maps of the last layer laid out like the image, weighted by the mean gradient of the "
        "predicted class's logit, negative parts cut.",
    ),
    "mcnemar": Definition(
        "McNemar's test",
        "Two-sided p-value from the examples on which exactly one of two models is right; exact "
        "below 25 of them.",
    ),
    "bootstrap": Definition(
        "Paired bootstrap",
        "Difference of two means over the same examples with its 95% percentile interval and "
        "two-sided p-value, from 1,000 resamples of the examples.",
    ),
    "delong": Definition(
        "DeLong's test",
        "Two-sided p-value of the difference of two AUROCs on the same examples.",
    ),
}
