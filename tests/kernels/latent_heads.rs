//! The heads of latent attention against the f64 reference: assembled from parts in tensors of their own and from
//! ranges of one tensor, and their gradients.

use crate::lab::{Case, Input, allowed, check, sum};
use crate::packed::{columns, pack_qkv, split_qkv};
use gristmill::element::Element::{self, Bf16, F16, F32};
use gristmill::ops::latent_heads::{
    Angles, LatentHeads, LatentParts, latent_heads, latent_heads_backward_kv, latent_heads_backward_q,
    latent_heads_backward_rope,
};
use gristmill::ops::rope::{Rope, cos_sin_table};
use gristmill::ops::rope_scaling::RopeScaling;
use gristmill::record::Tensor;

const POSITIONS: u32 = 100;
const THETA: f64 = 10_000.0;

/// Tokens, heads, nope_dim, rope_dim, value_dim, whether pairs are neighbours: the least, odd numbers of heads and
/// tokens, values narrower and wider than keys, more than a workgroup in a row, DeepSeek-V3's heads; halves within a
/// group, of an odd number of them, and of whole groups.
const SHAPES: [Shape; 8] = [
    (1, 1, 4, 4, 4, true),
    (7, 3, 8, 4, 12, true),
    (7, 3, 8, 4, 12, false),
    (9, 5, 4, 12, 20, false),
    (33, 2, 12, 8, 4, false),
    (33, 2, 12, 8, 4, true),
    (5, 33, 4, 4, 8, true),
    (3, 4, 128, 64, 128, true),
];

type Shape = (u32, u32, u32, u32, u32, bool);

#[test]
pub fn parts_become_packed_heads() {
    for element in [F32, F16, Bf16] {
        for shape in SHAPES {
            check(&format!("latent_heads {shape:?} {element:?}"), |case| {
                let setup = Setup::new(case, shape);
                let parts = setup.sizes.parts(shape.0).map(|(rows, cols)| case.input(rows, cols, element));
                let qkv = case.output(shape.0, setup.sizes.layout().cols(), element);
                let [q, kv, k_rope] = [0, 1, 2].map(|i| parts[i].tensor);
                let given = LatentParts { q, kv, k_rope };
                latent_heads(&mut case.rec, &given, &setup.angles, qkv, &setup.sizes);
                case.expect("qkv", qkv, setup.packed(&parts), allowed(element, 2));
            });
        }
    }
}

#[test]
pub fn each_part_has_its_gradient() {
    for element in [F32, F16, Bf16] {
        for shape in SHAPES {
            for accumulate in [false, true] {
                let name = format!("latent_heads_backward {shape:?} {element:?}, accumulate: {accumulate}");
                check(&name, |case| gradients(case, shape, element, accumulate));
            }
        }
    }
}

/// Without a low rank of q all of what one product computes are ranges of one tensor, and so are the gradients.
#[test]
fn parts_may_be_ranges_of_one_tensor() {
    for element in [F32, Bf16] {
        check(&format!("latent_heads of ranges {element:?}"), |case| {
            let shape = (7, 3, 8, 4, 12, element == F32);
            let setup = Setup::new(case, shape);
            let [q_cols, rank, rope_cols] = [36, 8, 4];
            let whole = case.input(7, 48, element);
            let kv = case.input(7, setup.sizes.kv_cols(), element);
            let range = |values: &[f64], first: u32, count: u32| {
                columns(values, 48, first as usize..(first + count) as usize)
            };
            let of = |tensor: Tensor| [tensor.columns(0, q_cols), tensor.columns(q_cols + rank, rope_cols)];
            let [q, k_rope] = of(whole.tensor);
            let qkv = case.output(7, setup.sizes.layout().cols(), element);
            let given = LatentParts { q, kv: kv.tensor, k_rope };
            latent_heads(&mut case.rec, &given, &setup.angles, qkv, &setup.sizes);
            let values = [range(&whole.values, 0, q_cols), range(&whole.values, q_cols + rank, rope_cols)];
            let packed = setup.packed_of(&values[0], &kv.values, &values[1]);
            case.expect("qkv", qkv, packed, allowed(element, 2));

            let (dqkv, gradient) = (case.input(7, qkv.cols, element), case.input(7, 48, element));
            let [dq, dk_rope] = of(gradient.tensor);
            let Setup { sizes, angles, .. } = &setup;
            latent_heads_backward_q(&mut case.rec, dqkv.tensor, angles, dq, false, sizes);
            latent_heads_backward_rope(&mut case.rec, dqkv.tensor, angles, dk_rope, false, sizes);
            let [want_q, _, want_rope] = setup.gradients(&dqkv.values);
            let middle = range(&gradient.values, q_cols, rank);
            let rows = want_q.chunks(q_cols as usize).zip(middle.chunks(rank as usize));
            let rows = rows.zip(want_rope.chunks(rope_cols as usize));
            let want = rows.flat_map(|((q, middle), rope)| [q, middle, rope].concat()).collect();
            case.expect("the gradient of the whole", gradient.tensor, want, allowed(element, 3));
        });
    }
}

struct Setup {
    sizes: LatentHeads,
    angles: Angles,
    positions: Vec<u32>,
    reference: reference::latent_heads::LatentHeads,
}

/// Rows and columns of each part.
trait Parts {
    fn parts(&self, tokens: u32) -> [(u32, u32); 3];
}

impl Parts for LatentHeads {
    fn parts(&self, tokens: u32) -> [(u32, u32); 3] {
        [self.layout().q_cols(), self.kv_cols(), self.rope_dim].map(|cols| (tokens, cols))
    }
}

impl Setup {
    fn new(case: &mut Case, (tokens, heads, nope_dim, rope_dim, value_dim, is_interleaved): Shape) -> Self {
        let rope = Rope { rotary_dim: rope_dim, theta: THETA, is_interleaved };
        let mut positions = case.ids_below(tokens as usize, POSITIONS);
        positions[0] = POSITIONS - 1;
        let table: Vec<f64> =
            cos_sin_table(POSITIONS, &rope, &RopeScaling::None, None).into_iter().map(f64::from).collect();
        let cos_sin = case.input_of(&table, POSITIONS, rope_dim, F32).tensor;
        let angles = Angles { positions: case.integers(&positions), cos_sin };
        let rope = reference::rope::Rope {
            head_dim: rope_dim as usize,
            rotary_dim: rope_dim as usize,
            theta: THETA,
            interleaved: is_interleaved,
            scaling: reference::rope_scaling::Scaling::None,
        };
        let reference = reference::latent_heads::LatentHeads {
            heads: heads as usize,
            nope_dim: nope_dim as usize,
            value_dim: value_dim as usize,
            rope,
        };
        let sizes = LatentHeads { heads, nope_dim, rope_dim, is_interleaved, value_dim };
        Self { sizes, angles, positions, reference }
    }

    fn packed(&self, [q, kv, k_rope]: &[Input; 3]) -> Vec<f64> {
        self.packed_of(&q.values, &kv.values, &k_rope.values)
    }

    fn packed_of(&self, q: &[f64], kv: &[f64], k_rope: &[f64]) -> Vec<f64> {
        let heads = reference::latent_heads::latent_heads(q, kv, k_rope, &self.positions, &self.reference);
        pack_qkv(&heads, &self.sizes.layout())
    }

    fn gradients(&self, dqkv: &[f64]) -> [Vec<f64>; 3] {
        let [dq, dk, dv] = split_qkv(dqkv, &self.sizes.layout());
        let of = &self.reference;
        let (dq, dkv, dk_rope) =
            reference::latent_heads::latent_heads_backward(&dq, &dk, &dv, &self.positions, of);
        [dq, dkv, dk_rope]
    }
}

fn gradients(case: &mut Case, shape: Shape, element: Element, accumulate: bool) {
    let setup = Setup::new(case, shape);
    let Setup { sizes, angles, .. } = &setup;
    let dqkv = case.input(shape.0, sizes.layout().cols(), element);
    let before = sizes.parts(shape.0).map(|(rows, cols)| case.input(rows, cols, element));
    let written = sizes.parts(shape.0).map(|(rows, cols)| case.output(rows, cols, element));
    let into = |i: usize| if accumulate { before[i].tensor } else { written[i] };
    latent_heads_backward_q(&mut case.rec, dqkv.tensor, angles, into(0), accumulate, sizes);
    latent_heads_backward_kv(&mut case.rec, dqkv.tensor, angles, into(1), accumulate, sizes);
    latent_heads_backward_rope(&mut case.rec, dqkv.tensor, angles, into(2), accumulate, sizes);
    let wants = setup.gradients(&dqkv.values);
    for (i, (label, terms)) in [("dq", 2), ("dkv", 1), ("dk_rope", shape.1 + 1)].into_iter().enumerate() {
        let want = if accumulate { sum(&before[i].values, &wants[i]) } else { wants[i].clone() };
        case.expect(label, into(i), want, allowed(element, terms + 1));
    }
}
