//! Pipeline stages: which layers each holds, and degrees that cannot be.

use super::ranks::{PARALLEL, answer, plan_on};
use gristmill::ranks::RankLayout;

const STAGES: &str = "--parallel_config={pipeline_stage: 2, micro_batch_num: 4}";
const LAYERS: &str = "--model.model_config.num_layers=6";

/// The first layer of each chunk of each stage, and the one after its last.
fn layers_of(flags: &[&str], stages: usize) -> Vec<Vec<[usize; 2]>> {
    let of_stage = |stage| {
        let (plan, _) = plan_on(flags, stage, stages);
        assert_eq!(plan.layout, RankLayout { rank: stage, pipeline: stages, ..RankLayout::one() });
        plan.stages.chunks(stage).into_iter().map(|chunk| [chunk.layers.start, chunk.layers.end]).collect()
    };
    (0..stages).map(of_stage).collect()
}

#[test]
fn stages_hold_the_layers_that_the_offset_deals_them() {
    assert_eq!(layers_of(&[STAGES, LAYERS], 2), [[[0, 3]], [[3, 6]]]);
    let offset = "--model.model_config.offset=[1, -1]";
    assert_eq!(layers_of(&[STAGES, LAYERS, offset], 2), [[[0, 4]], [[4, 6]]]);
    let interleaved = [
        STAGES,
        LAYERS,
        "--parallel_config.pp_interleave_num=2",
        "--parallel.pipeline_config={pipeline_interleave: True, pipeline_scheduler: 1f1b}",
        "--model.model_config.offset=[[0, 1], [1, 0]]",
    ];
    assert_eq!(layers_of(&interleaved, 2), [[[0, 1], [3, 5]], [[1, 3], [5, 6]]]);
    // What a run folder says is the same plan.
    let (plan, _) = plan_on(&interleaved, 1, 2);
    assert!(plan.to_yaml().contains("offset") && plan.to_yaml().contains("micro_batch_num: 4"));
}

#[test]
fn micro_batches_are_those_of_the_pipeline() {
    let (plan, notices) = plan_on(&[STAGES, LAYERS, "--gradient_accumulation_steps=3"], 0, 2);
    assert_eq!((plan.settings.runner.gradient_accumulation_steps, plan.tokens_per_step), (4, 4 * 4 * 32));
    assert!(
        notices.iter().any(|line| line.contains("`3` does not count beside pipeline stages")),
        "{notices:?}"
    );
}

#[test]
fn degrees_that_cannot_be_are_one_line_each() {
    let interleaved = "--parallel.pipeline_config.pipeline_interleave=True";
    let two = "--parallel_config.pp_interleave_num=2";
    let three = "--parallel_config={pipeline_stage: 3, micro_batch_num: 4}";
    for (flags, line) in [
        (
            &[STAGES, "--model.model_config.num_layers=1"][..],
            "1 layers are too few for 2 stages x 1 interleaves",
        ),
        (
            &[STAGES, LAYERS, "--model.model_config.offset=[0, 0, 0]"],
            "offset: expected a whole number, one for each",
        ),
        (
            &[STAGES, LAYERS, "--model.model_config.offset=[0, 1]"],
            "leave 0: the offsets [[0, 1]] add up to 1; write some that add up to 0",
        ),
        (
            &[three, LAYERS, "--model.model_config.offset=[1, -2, 1]"],
            "leaves a stage between others without a layer: [[3, 0, 3]]",
        ),
        (
            &["--parallel_config={pipeline_stage: 2, micro_batch_num: 1}", LAYERS],
            "`1` is below the 2 pipeline stages",
        ),
        (
            &["--parallel_config={pipeline_stage: 2, micro_batch_num: 3}", LAYERS, interleaved, two],
            "`3` is no multiple of the 2",
        ),
        (
            &["--parallel_config={data_parallel: 2, pp_interleave_num: 2}", interleaved],
            "pp_interleave_num 2 needs pipeline_stage above 1",
        ),
        (
            &[
                "--parallel_config={pipeline_stage: 2, pp_interleave_num: 2, micro_batch_num: 2}",
                LAYERS,
                interleaved,
                "--model.model_config.pp_interleave_num=1",
            ],
            "is 1, and `parallel_config.pp_interleave_num` is 2; keep one of them",
        ),
        (
            &[STAGES, LAYERS, "--parallel.pipeline_config.pipeline_scheduler=gpipe"],
            "`gpipe` is not built; write `1f1b`",
        ),
        (
            &[STAGES, LAYERS, "--model.model_config.mtp_depth=2", "--model.model_config.offset=[3, -3]"],
            "leaves the last stage 1 layers, and it needs the 2 blocks",
        ),
    ] {
        let size = if flags[0] == three { 3 } else { 2 };
        let said = answer(&[&[PARALLEL], flags].concat(), size);
        assert!(said.contains(line) && said.lines().count() == 1, "{flags:?}: {said}");
    }
}
