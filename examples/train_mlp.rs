//! A training loop of one's own on the tape: a network of three layers learns which of three spirals a point is on,
//! with AdamW, a schedule, clipped gradients, a loss scale and new points in each step. `cargo run --release --example
//! train_mlp`

use gristmill::ops::adamw::{AdamW, AdamWTensors, adamw};
use gristmill::ops::gelu::Gelu;
use gristmill::ops::grad_norm::{StepRules, StepTensors, grad_norm};
use gristmill::ops::rounding::Rounding;
use gristmill::ops::step_state::{LossState, StepState};
use gristmill::ops::zero::zero;
use gristmill::prelude::*;
use gristmill::random::Philox;
use gristmill::tape::{CrossEntropy, HeadForm};

const POINTS: u32 = 256; // of a step
const FEATURES: u32 = 4;
const WIDTH: u32 = 64;
const SPIRALS: u32 = 3;
const STEPS: u32 = 300;
const BETAS: [f64; 2] = [0.9, 0.99];
const LOSS_SCALE: f32 = 1024.0; // f32 needs none; runs in f16 do

fn main() -> gristmill::error::Result<()> {
    pollster::block_on(async {
        let gpu = Gpu::request(&GpuOptions::default()).await?;
        let mut job = Job::new("step", gpu.capabilities());
        let step = Step::record(&mut job);
        let prepared = gpu.prepare_job(job, Guard::Off).await?;
        let mut losses = Vec::new();
        for number in 0..STEPS {
            losses.push(step.run(&prepared, number).await?);
            if number % 50 == 0 || number + 1 == STEPS {
                println!("step {number}: loss {:.4}", losses[number as usize]);
            }
        }
        assert!(losses[losses.len() - 1] < 0.1 * losses[0], "the network did not learn");
        Ok(())
    })
}

/// The tensors that the host writes and reads around a step.
struct Step {
    points: Tensor,
    spirals: Tensor,
    tensors: StepTensors,
}

impl Step {
    /// Records a step: forward, backward, gradient norm, update.
    fn record(job: &mut Job) -> Self {
        let points = job.input(&vec![0.0; (POINTS * FEATURES) as usize], POINTS, FEATURES);
        let spirals = job.integers(&[0; POINTS as usize]);
        // A row for each step: its learning rate, and what AdamW divides its moments by.
        let schedule: Vec<f32> = (1..=STEPS as i32).flat_map(schedule_row).collect();
        let tensors = StepTensors {
            state: job.state(StepState { loss_scale: LOSS_SCALE, ..StepState::default() }),
            loss: job.state(LossState::default()),
            schedule: job.input(&schedule, STEPS, 3),
        };
        let parameters = [[WIDTH, FEATURES], [WIDTH, WIDTH], [SPIRALS, WIDTH]].map(|[rows, cols]| {
            let random = Philox::new(u64::from(rows * cols), 0);
            let scale = (2.0 / f64::from(cols)).sqrt();
            let values: Vec<f32> =
                (0..rows * cols).map(|i| (scale * random.normal(i.into())) as f32).collect();
            Parameter {
                weight: vec![job.input(&values, rows, cols)],
                gradient: Some(vec![job.output(rows, cols)]),
            }
        });
        // Gradients are added to, as micro-batches need it; a step of one starts from zeros.
        let gradients: Vec<Tensor> = parameters.iter().filter_map(Parameter::gradient).collect();
        gradients.iter().for_each(|gradient| zero(&mut job.rec, *gradient));

        let mut tape = Tape::new(&mut job.rec);
        let mut h = tape.leaf(points, false);
        for layer in &parameters[..2] {
            h = tape.linear_gelu(h, layer, None, Gelu::Tanh);
        }
        let loss = CrossEntropy::new(spirals, tensors.state, tensors.loss);
        tape.linear_cross_entropy(h, &parameters[2], &loss, HeadForm::default());
        tape.backward();

        let rules = StepRules { max_norm: Some(1.0), ..StepRules::default() };
        grad_norm(&mut job.rec, &gradients, &tensors, &rules);
        for parameter in &parameters {
            let Tensor { rows, cols, .. } = parameter.weight();
            let [first_moments, second_moments] = [0; 2].map(|_| job.output(rows, cols));
            let gradients = parameter.gradient().expect("it trains");
            let segment =
                AdamWTensors { weights: parameter.weight(), gradients, first_moments, second_moments };
            let [beta1, beta2] = BETAS.map(|beta| beta as f32);
            let settings = AdamW {
                decay: 0.01,
                beta1,
                beta2,
                epsilon: 1e-8,
                corrects_epsilon: false,
                rate_column: 0,
                rounding: Rounding::default(),
            };
            adamw(&mut job.rec, &segment, &tensors, &settings);
        }
        Self { points, spirals, tensors }
    }

    /// Runs the step on new points, and returns its loss.
    async fn run(&self, prepared: &PreparedJob<'_>, number: u32) -> gristmill::error::Result<f32> {
        let random = Philox::new(7, number.into());
        let spirals: Vec<u32> = (0..POINTS).map(|i| i % SPIRALS).collect();
        let points = spirals.iter().enumerate().flat_map(|(i, spiral)| {
            let radius = random.uniform(i as u64);
            let angle = 4.0 * radius + std::f64::consts::TAU * f64::from(*spiral) / f64::from(SPIRALS);
            [radius * angle.cos(), radius * angle.sin(), radius, 1.0].map(|feature| feature as f32)
        });
        prepared.write(&self.points, &points.collect::<Vec<f32>>())?;
        prepared.write_words(&self.spirals, &spirals)?;
        prepared.write_state(&self.tensors.loss, &LossState::default())?;
        prepared.replay().await?;
        // Waits for the step; a program that need not see each loss reads it more rarely.
        Ok(prepared.state::<StepState>(&self.tensors.state).await?.loss)
    }
}

fn schedule_row(step: i32) -> [f32; 3] {
    let rate = 0.01 * 0.5 * (1.0 + (std::f64::consts::PI * f64::from(step) / f64::from(STEPS)).cos());
    let [first, second] = BETAS.map(|beta| 1.0 / (1.0 - beta.powi(step)));
    [rate, first, second].map(|number| number as f32)
}
