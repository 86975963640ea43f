//! Keys set on the command line: what they do, and what they are called where they are at fault.

use super::{BASE, assert_answers, message, resolve};
use gristmill::data::Loader;
use gristmill::kernels::Tier;
use gristmill::settings::Resume;

#[test]
fn overrides_are_named_by_their_flag() {
    assert_answers(FLAGS, |_, argument| message(BASE, &[argument.trim()]));
    let missing = "`data_loader.type` is missing; write one of";
    let eval = ["--do_eval", "--eval_dataset.data_loader.shuffle=False", "--seed=3"];
    let line = message(BASE, &eval);
    let expected = format!("--eval_dataset.data_loader.shuffle: eval_dataset: {missing}");
    assert!(line.starts_with(&expected), "{line}");
    // The file's own fault stays the file's, though flags are given.
    let line = message(&BASE.replace("num_heads: 4", "num_heads: 5"), &eval[2..]);
    assert!(line.starts_with("x.yaml:8: model.model_config.num_heads: "), "{line}");
    let arguments = [
        "--batch_size",
        "2",
        "--gradient_accumulation_steps=3",
        "--model.model_config.num_attention_heads=2",
        "--callbacks.1.save_checkpoint_steps=5",
        "--callbacks.1.save_checkpoint_steps=6",
        "--train_dataset.data_loader={type: TextDataLoader, dataset_dir: [a, b]}",
        "--context.tier=software",
        "--resume_training",
    ];
    let (plan, _) = resolve(BASE, &arguments).unwrap();
    assert_eq!(
        (
            plan.settings.runner.batch_size,
            plan.settings.runner.gradient_accumulation_steps,
            plan.tokens_per_step
        ),
        (2, 3, 192)
    );
    assert_eq!((plan.model.num_heads, plan.model.head_dim), (2, 32));
    assert_eq!(plan.settings.callbacks.checkpoint.unwrap().save_checkpoint_steps, 6);
    assert!(matches!(plan.train_dataset.loader, Loader::Text(text) if text.data_path.paths == ["a", "b"]));
    assert_eq!(
        (plan.settings.context.tier, plan.settings.run.resume_training),
        (Some(Tier::Software), Resume::Latest)
    );
}

const FLAGS: &str = "
+ --model.model_config.num_heads=5
= --model.model_config.num_heads: 5 heads do not divide hidden_size 64; change one of them or give `head_dim`
+ --batch_size=many
= --batch_size: expected a whole number from 0, found `many`
+ --runner_config.epoch=3
= --runner_config.epoch: unknown key; did you mean `epochs`?
+ --runner_wrapper.scale_sense={type: Fixed}
= --runner_wrapper.scale_sense: unknown type `Fixed`; known are FixedLossScaleUpdateCell, DynamicLossScaleUpdateCell, AdaptiveLossScaleUpdateCell
+ --runer_config.batch_size=2
= --runer_config.batch_size: runer_config: unknown key; did you mean `runner_config`?
+ --model.model_config.rope_scaling.factr=2
= --model.model_config.rope_scaling.factr: model.model_config.rope_scaling: `rope_type` is missing; give it linear, yarn or llama3
+ --model.model_config.hidden_size=50
= --model.model_config.hidden_size: model.model_config.num_heads: 4 heads do not divide hidden_size 50; change one of them or give `head_dim`
+ --seed.x=3
= --seed.x: `seed` is `7`, not a section
+ --callbacks.9.type=x
= --callbacks.9.type: `callbacks` is a list of 2 items, numbered from 0
+ --seed=[
= --seed: `[` is not a valid value: did not find expected node content
";
