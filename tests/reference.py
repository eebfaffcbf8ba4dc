"""The papers' algorithms as slow, obvious loops. The fast code must match them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def random(*shape: int, seed: int = 0) -> Tensor:
    """Normally distributed numbers in float64, with a gradient, to compare the two on."""
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def squash(vector: Tensor) -> Tensor:
    length = math.sqrt(1e-8) if not vector.any() else (vector.square().sum() + 1e-8).sqrt()
    return vector / length * length**2 / (1 + length**2)


def dynamic_routing(
    votes: Tensor, bias: Tensor, iterations: int, gradient: str = "all", leaky: bool = False
) -> tuple[Tensor, Tensor]:
    """*Dynamic Routing Between Capsules*, procedure 1, one image and one capsule at a time."""
    images, inputs, outputs, _ = votes.shape
    all_capsules, all_couplings = [], []
    for k in range(images):
        logits = [[votes.new_zeros(()) for _ in range(outputs)] for _ in range(inputs)]
        for iteration in range(iterations):
            leak = [votes.new_zeros(())] if leaky else []
            coupling = [torch.stack(logits[i] + leak).softmax(0)[:outputs] for i in range(inputs)]
            if gradient == "last":
                coupling = [c.detach() for c in coupling]
            capsules = []
            for j in range(outputs):
                total = bias[j]
                for i in range(inputs):
                    total = total + coupling[i][j] * votes[k, i, j]
                capsules.append(squash(total))
            if iteration < iterations - 1:
                for i in range(inputs):
                    for j in range(outputs):
                        logits[i][j] = logits[i][j] + votes[k, i, j] @ capsules[j]
        all_capsules.append(torch.stack(capsules))
        all_couplings.append(torch.stack(coupling))
    return torch.stack(all_capsules), torch.stack(all_couplings)


def votes(capsules: Tensor, weight: Tensor) -> Tensor:
    """u_hat_ji = W_ij u_i for every pair."""
    images, inputs, _ = capsules.shape
    result = []
    for k in range(images):
        for i in range(inputs):
            result += [
                sum(capsules[k, i, d] * weight[i, d, j] for d in range(weight.shape[1])) for j in range(weight.shape[2])
            ]
    return torch.stack(result).reshape(images, inputs, weight.shape[2], weight.shape[3])  # type: ignore[arg-type]


def discriminative_capsules(
    votes: Tensor, b: Tensor, bias: Tensor, squash_votes: bool | str = True, squash_capsules: bool = False
) -> Tensor:
    """*Routing Towards Discriminative Power*, equation 6, one image and one class at a time."""
    images, inputs, outputs, dims = votes.shape
    if squash_votes == "classes":
        rows = [squash(votes[k, i, :, d]) for k in range(images) for i in range(inputs) for d in range(dims)]
        votes, squash_votes = torch.stack(rows).view(images, inputs, dims, outputs).transpose(2, 3), False
    result = []
    for k in range(images):
        for j in range(outputs):
            total = bias[j]
            for i in range(inputs):
                total = total + b[i, j] * (squash(votes[k, i, j]) if squash_votes else votes[k, i, j])
            result.append(squash(total) if squash_capsules else total)
    return torch.stack(result).reshape(images, outputs, -1)


def ascend(
    votes: Tensor,
    b: Tensor,
    labels: list[list[int]],
    gamma: float,
    weight: float,
    penalty: str,
    l1_inside: bool = False,
) -> Tensor:
    """Lines 7 to 9 of algorithm 1: equations 13 and 15 for every b_j, with U_kj the rows of (squashed) votes."""
    images, inputs, outputs, _ = votes.shape
    updated = b.clone()
    for j in range(outputs):
        total = torch.zeros(inputs, dtype=b.dtype)
        for k in range(images):
            delta = 1 if j in labels[k] else -1
            u = votes[k, :, j]  # U_kj, [inputs, D]
            total += delta * (u @ (u.T @ b[:, j]))
        if penalty == "l2":
            updated[:, j] = b[:, j] + 2 * gamma * (total - weight * b[:, j])
        elif l1_inside:
            updated[:, j] = b[:, j] + 2 * gamma * (total - weight * b[:, j].sign())
        else:
            updated[:, j] = b[:, j] + 2 * gamma * total - gamma * weight * b[:, j].sign()
    return updated


def margin_loss(lengths: Tensor, labels: Tensor) -> Tensor:
    rows = []
    for k in range(len(labels)):
        terms = []
        for j in range(lengths.shape[1]):
            if j == labels[k]:
                terms.append(max(lengths.new_zeros(()), 0.9 - lengths[k, j]) ** 2)
            else:
                terms.append(0.5 * max(lengths.new_zeros(()), lengths[k, j] - 0.1) ** 2)
        rows.append(torch.stack(terms))
    return torch.stack(rows)


def support(coupling: Tensor, types: int, grouping: str) -> Tensor:
    """Section 2.2: the largest coupling in each group of primary capsules, summed over the groups, for each capsule."""
    images, inputs, outputs = coupling.shape
    locations = inputs // types
    result = torch.zeros(images, outputs, dtype=coupling.dtype)
    for k in range(images):
        for j in range(outputs):
            for group in range(locations):
                if grouping == "location":  # capsules lie in the order (type, location)
                    members = [coupling[k, p * locations + group, j] for p in range(types)]
                else:  # the order that the released code takes them to be in
                    members = [coupling[k, group * types + p, j] for p in range(types)]
                result[k, j] += max(members)
    return result


def sparse_mask(support: Tensor, boost: Tensor, gamma: float = 12, floor: float = 0.01) -> Tensor:
    """Equations 1 to 3."""
    images, capsules = support.shape
    mask = torch.zeros(images, capsules)
    for k in range(images):
        boosted = [float(support[k, j] * boost[j]) for j in range(capsules)]
        for j in range(capsules):
            rank = sum(other > boosted[j] for other in boosted)
            value = math.exp(-gamma * rank / (capsules - 1))
            mask[k, j] = value if value >= floor else 0
    return mask


class Boosting:
    """Equations 5 to 7 and algorithm 1, on plain numbers."""

    def __init__(self, capsules: int, low: float, high: float, step: float = 0.1, every: int = 50, alpha: float = 0.99):
        self.frequency = [0.0] * capsules
        self.boost = [1.0] * capsules
        self.low, self.high, self.step, self.every, self.alpha, self.n = low, high, step, every, alpha, 0

    def observe(self, winners: list[int]) -> None:
        for j in range(len(self.boost)):
            phi = winners.count(j) / len(winners)
            self.frequency[j] = phi if self.n == 0 else self.alpha * self.frequency[j] + (1 - self.alpha) * phi
        self.n += 1
        if self.n % self.every != 0:
            return
        for j in range(len(self.boost)):
            if self.frequency[j] < self.low:
                self.boost[j] += self.step
            if self.frequency[j] > self.high:
                self.boost[j] = max(1.0, self.boost[j] - self.step)


def shift(image: Tensor, down: int, right: int) -> Tensor:
    height, width = image.shape
    result = torch.zeros_like(image)
    for y in range(height):
        for x in range(width):
            if 0 <= y - down < height and 0 <= x - right < width:
                result[y, x] = image[y - down, x - right]
    return result


def matrix_votes(poses: Tensor, weight: Tensor, children: list[list[int]]) -> Tensor:
    """*Learning to compute inner consensus*, equation 1: V = W M, one capsule at a time; [B, P, n, J, 16]."""
    result = []
    for image in poses:
        for seen in children:
            for slot, child in enumerate(seen):
                for transformation in weight[slot]:
                    result.append((transformation @ image[child].reshape(4, 4)).flatten())
    return torch.stack(result).reshape(len(poses), len(children), len(children[0]), weight.shape[1], 16)


def em_routing(
    votes: Tensor,
    activations: Tensor,
    children: list[list[int]],
    beta_u: Tensor,
    beta_a: Tensor,
    schedule: list[float],
    cost_inputs: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """*Matrix Capsules with EM Routing*, procedure 1, in densities rather than their logarithms."""
    images, positions, slots, outputs, dims = votes.shape
    seen_at = [sum(seen.count(child) for seen in children) for child in range(activations.shape[1])]
    poses, acts, couplings = [], [], []
    for b in range(images):
        r = {
            (p, s, j): votes.new_tensor(1 / (outputs * seen_at[children[p][s]]))
            for p in range(positions)
            for s in range(slots)
            for j in range(outputs)
        }
        for t, temperature in enumerate(schedule):
            mean, variance, a_out = {}, {}, {}
            for p in range(positions):
                for j in range(outputs):
                    w = [r[p, s, j] * activations[b, children[p][s]] for s in range(slots)]
                    total = sum(w)
                    mean[p, j] = sum(w[s] * votes[b, p, s, j] for s in range(slots)) / (total + 1e-8)
                    spread = sum(w[s] * (votes[b, p, s, j] - mean[p, j]) ** 2 for s in range(slots))
                    variance[p, j] = spread / (total + 1e-8) + 1e-6
                    cost = sum((beta_u[j] + variance[p, j][h].sqrt().log()) * total for h in range(dims))
                    scaled = cost if cost_inputs is None else cost * cost_inputs / slots
                    a_out[p, j] = torch.sigmoid(temperature * (beta_a[j] - scaled))
            if t == len(schedule) - 1:
                break
            density = {}
            for p, s, j in r:
                exponent = -((votes[b, p, s, j] - mean[p, j]) ** 2 / (2 * variance[p, j])).sum()
                density[p, s, j] = a_out[p, j] * exponent.exp() / (2 * math.pi * variance[p, j]).prod().sqrt()
            for child in range(activations.shape[1]):
                own = [key for key in density if children[key[0]][key[1]] == child]
                whole = sum(density[key] for key in own)
                for key in own:
                    r[key] = density[key] / whole
        poses.append(torch.stack([mean[p, j] for p in range(positions) for j in range(outputs)]))
        acts.append(torch.stack([a_out[p, j] for p in range(positions) for j in range(outputs)]))
        couplings.append(
            torch.stack([r[p, s, j] for p in range(positions) for s in range(slots) for j in range(outputs)])
        )
    shape = (images, positions)
    return (
        torch.stack(poses).reshape(*shape, outputs, dims),
        torch.stack(acts).reshape(*shape, outputs),
        torch.stack(couplings).reshape(*shape, slots, outputs),
    )


def similarity_routing(
    votes: Tensor,
    activations: Tensor,
    children: list[list[int]],
    penalties: tuple[Tensor, Tensor],
    kernel: tuple[Tensor, Tensor],
    theta: tuple[Tensor, Tensor, Tensor],
    iterations: int,
) -> tuple[Tensor, Tensor]:
    """*Learning to compute inner consensus*, algorithm 1 with equations 4, 11, 13 and 15."""
    images, positions, slots, outputs, _ = votes.shape
    poses, acts = [], []
    for b in range(images):
        for p in range(positions):
            for j in range(outputs):
                v = [votes[b, p, s, j] for s in range(slots)]
                a = [activations[b, children[p][s]] + 1e-6 for s in range(slots)]
                lambda1, lambda2 = penalties[0][j], penalties[1][j]
                whole = lambda1 + lambda2 + 1e-6
                mixture = kernel[0].softmax(0)
                mu = sum(v) / slots
                for _ in range(iterations):
                    k = []
                    for s in range(slots):
                        distance = ((v[s] - mu) ** 2).sum()
                        gaussians = [torch.exp(-distance / (2 * width[j] ** 2 + 1e-6)) for width in kernel[1]]
                        k.append(sum(w * g for w, g in zip(mixture, gaussians, strict=True)))
                    powers = [a[s] ** (lambda2 / whole) * torch.exp(k[s] / whole) for s in range(slots)]
                    c = [power / sum(powers) for power in powers]
                    mu = sum(c[s] * v[s] for s in range(slots))
                agreement = sum(c[s] * k[s] for s in range(slots))
                presence = sum(c[s] * a[s].log() for s in range(slots))
                poses.append(mu)
                acts.append(torch.sigmoid(theta[0][j] * agreement + theta[2][j].abs() * presence + theta[1][j]))
    shape = (images, positions, outputs)
    return torch.stack(poses).reshape(*shape, -1), torch.stack(acts).reshape(*shape)


def connectionist_routing(
    votes: Tensor, activations: Tensor, children: Tensor, route: nn.Module, cell: nn.LSTMCell
) -> tuple[Tensor, Tensor]:
    """*Learning to compute inner consensus*, algorithm 2 and equation 14, with the networks of `route`; logits."""
    images, positions, slots, outputs, dims = votes.shape
    poses, acts = [], []
    for b in range(images):
        for p in range(positions):
            for j in range(outputs):
                v, a = votes[b, p, :, j], activations[b, children[p]]
                c, mu, state = torch.full((slots,), 1 / slots, dtype=votes.dtype), v.mean(0), None
                for _ in range(route.iterations):
                    read = torch.cat([mu.expand(slots, -1), a[:, None], v, c[:, None]], 1)
                    state = cell(read, state)
                    c = route.compatibility(state[0])[:, 0].softmax(0)
                    mu = c @ v
                poses.append(mu)
                acts.append(route.activation(c @ state[1])[0])
    return torch.stack(poses).reshape(images, positions, outputs, dims), torch.stack(acts).reshape(*votes.shape[:2], -1)


def cosine_routing(votes: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """*Training products of expert capsules*, section 2.2, one image and one output capsule at a time."""
    images, inputs, outputs, _ = votes.shape
    capsules, couplings = [], []
    for k in range(images):
        for j in range(outputs):
            v = [votes[k, i, j].detach() for i in range(inputs)]
            b = [0.0] * inputs
            for iteration in range(iterations):
                powers = [math.exp(logit) for logit in b]
                c = [power / sum(powers) for power in powers]
                z = sum(c[i] * v[i] for i in range(inputs))
                if iteration < iterations - 1:
                    for i in range(inputs):
                        product = float(v[i].norm() * z.norm())
                        b[i] += float(v[i] @ z) / product if product else 0.0
            capsules.append(squash(sum(c[i] * votes[k, i, j] for i in range(inputs))))
            couplings.append(torch.tensor(c, dtype=votes.dtype))
    shape = (images, outputs)
    return torch.stack(capsules).reshape(*shape, -1), torch.stack(couplings).reshape(*shape, -1).transpose(1, 2)


def attention_routing(votes: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
    """*Efficient-CapsNet*, section 3, one image at a time, with the attention matrices of all pairs of votes."""
    capsules, couplings = [], []
    for u in votes:
        inputs, outputs, dims = u.shape
        attention = [
            [[u[i, j] @ u[k, j] / dims**0.5 for k in range(inputs)] for j in range(outputs)] for i in range(inputs)
        ]
        logits = torch.stack([torch.stack([sum(attention[i][j]) for j in range(outputs)]) for i in range(inputs)])
        c = torch.stack([row.exp() / row.exp().sum() for row in logits])
        for j in range(outputs):
            s = sum((c[i, j] + prior[i, j]) * u[i, j] for i in range(inputs))
            length = s.square().sum().sqrt()
            capsules.append((1 - 1 / length.exp()) * s / length)
        couplings.append(c)
    return torch.stack(capsules).reshape(len(votes), votes.shape[2], -1), torch.stack(couplings)


def encoder_update(x: Tensor, c: Tensor, w: Tensor, uniform: Tensor | None = None) -> Tensor:
    """Algorithm 1 without its last line: Delta W, a mean over images, w[i, j] being the matrix W_ij. With `uniform`,
    output j of an image is on or off while it mixes."""
    images, inputs, _ = x.shape
    outputs = w.shape[1]
    change = torch.zeros_like(w)
    for k in range(images):
        z = [sum(c[k, i, j] * (w[i, j] @ x[k, i]) for i in range(inputs)) for j in range(outputs)]
        out = [squash(z[j]) for j in range(outputs)]
        if uniform is not None:
            out = [each / each.norm() * float(u < each.norm()) for u, each in zip(uniform[k], out, strict=True)]
        back = [squash(sum(c[k, i, j] * (w[i, j].T @ out[j]) for j in range(outputs))) for i in range(inputs)]
        again = [sum(c[k, i, j] * (w[i, j] @ back[i]) for i in range(inputs)) for j in range(outputs)]
        for i in range(inputs):
            for j in range(outputs):
                data = torch.outer(z[j], x[k, i]) / (1 + z[j] @ z[j])
                model = torch.outer(again[j], back[i]) / (1 + again[j] @ again[j])
                change[i, j] += 2 * c[k, i, j] * (data - model) / images
    return change


def decoder_update(x: Tensor, e: Tensor, u: Tensor, z: Tensor) -> Tensor:
    """The update rule of section 4.1: Delta U, a mean over images, u[j, i] being the matrix U_ji."""
    images, sources, _ = x.shape
    targets = u.shape[1]
    change = torch.zeros_like(u)
    for k in range(images):
        made = [sum(e[k, j, i] * (u[j, i] @ x[k, j]) for j in range(sources)) for i in range(targets)]
        back = [squash(sum(e[k, j, i] * (u[j, i].T @ made[i]) for i in range(targets))) for j in range(sources)]
        for j in range(sources):
            for i in range(targets):
                data = torch.outer(z[k, i], x[k, j]) / (1 + z[k, i] @ z[k, i])
                model = torch.outer(made[i], back[j]) / (1 + made[i] @ made[i])
                change[j, i] += 2 * e[k, j, i] * (data - model) / images
    return change
