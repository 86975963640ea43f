//! Futures that a program may spawn on a runtime with threads, as `tokio::spawn` asks for: compiling is the test.

use gristmill::data::Batches;
use gristmill::device::{Gpu, GpuOptions, Guard, Job, PreparedJob};
use gristmill::record::Tensor;
use gristmill::settings::RunPlan;
use gristmill::tape::Tape;
use gristmill::train::Trainer;
use gristmill::train::length::RunLength;
use std::path::Path;

fn is_send<T: Send>(_: &T) {}

fn is_sync<T: Send + Sync>() {}

#[test]
fn what_a_program_awaits_can_be_spawned() {
    is_sync::<Gpu>();
    is_sync::<Job>();
    is_sync::<PreparedJob<'_>>();
    is_send(&Gpu::request(&GpuOptions::default()));
    let _ = on_a_device;
    let _ = in_training;
}

fn on_a_device(gpu: &Gpu, job: Job, prepared: &PreparedJob<'_>, tensor: &Tensor) {
    is_send(&gpu.run(|job| job.output(1, 1)));
    is_send(&gpu.prepare_job(job, Guard::Off));
    is_send(&prepared.replay());
    is_send(&prepared.values(tensor));
    is_send(&gpu.wait());
    // A tape may wait for the device, too.
    is_send(&async {
        let mut job = Job::new("on a tape", gpu.capabilities());
        let x = job.input(&[1.0; 4], 1, 4);
        let mut tape = Tape::new(&mut job.rec);
        let x = tape.leaf(x, true);
        let recorded = gpu.wait().await;
        tape.backward();
        recorded.map(|()| x)
    });
}

fn in_training(gpu: &Gpu, plan: &RunPlan, length: &RunLength, data: &Batches, trainer: &mut Trainer<'_>) {
    is_send(&Trainer::new(gpu, plan, length));
    is_send(&trainer.step(0, data, 0));
    is_send(&trainer.evaluate(0, data, 1, |_| Ok(())));
    is_send(&trainer.wait());
    is_send(&trainer.save(Path::new("run"), data));
    is_send(&trainer.resume(Path::new("run"), data));
}
