//! Instruments, which show the steps of a run or write them to files, and the handling of one that fails.

use super::expert_load::LayerLoad;
use super::metrics::{MonitorValue, StartMetrics, StepMetrics};
use crate::error::Result;
use std::fmt::Debug;

/// The results of a step, once it and its evaluation are finished.
#[derive(Clone, Copy, Debug)]
pub struct StepReport<'a> {
    /// The step's line of `metrics.jsonl`.
    pub metrics: &'a StepMetrics,
    /// The load of each layer with experts, for a mixture, in the model's order; blocks of multi-token prediction come
    /// last.
    pub loads: Option<&'a [LayerLoad]>,
    /// The numbers of `monitor_config` that are due, in their order.
    pub watched: &'a [MonitorValue],
}

/// Shows the steps of a run or writes them down.
pub trait Instrument: Debug {
    /// Shows a step. Steps come in order, each once.
    ///
    /// # Errors
    /// A file that cannot be written. The instrument still gets the next step, so data that was not written must be
    /// kept or left out as a whole.
    fn step(&mut self, report: &StepReport<'_>) -> Result<()>;

    /// Shows the evaluation before the first step.
    ///
    /// # Errors
    /// A file that cannot be written.
    fn start(&mut self, _evaluation: &StartMetrics) -> Result<()> {
        Ok(())
    }

    /// Ends after the last step of a run without an error.
    fn finish(&mut self) {}
}

/// The instruments of a run, in the order in which they show a step. An instrument that fails is reported once, and
/// training continues.
#[derive(Debug, Default)]
pub struct Instruments(Vec<Mounted>);

#[derive(Debug)]
struct Mounted {
    instrument: Box<dyn Instrument>,
    has_failed: bool,
}

impl Instruments {
    /// Adds an instrument after the others.
    pub fn push(&mut self, instrument: impl Instrument + 'static) {
        self.0.push(Mounted { instrument: Box::new(instrument), has_failed: false });
    }

    /// Shows a step on all instruments.
    pub fn step(&mut self, report: &StepReport<'_>) {
        self.each(|instrument| instrument.step(report));
    }

    /// Shows the evaluation before the first step on all instruments.
    pub fn start(&mut self, evaluation: &StartMetrics) {
        self.each(|instrument| instrument.start(evaluation));
    }

    fn each(&mut self, mut show: impl FnMut(&mut dyn Instrument) -> Result<()>) {
        for Mounted { instrument, has_failed } in &mut self.0 {
            let Err(error) = show(instrument.as_mut()) else { continue };
            // Once per run: steps in between may have nothing to write, and so succeed.
            if !*has_failed {
                tracing::warn!("{error}; training goes on without it");
            }
            *has_failed = true;
        }
    }

    /// Ends all instruments after the last step.
    pub fn finish(&mut self) {
        self.0.iter_mut().for_each(|mounted| mounted.instrument.finish());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use std::sync::{Arc, Mutex};

    /// Records the steps that it has shown; fails at some.
    #[derive(Debug)]
    struct Flaky {
        fails: fn(u64) -> bool,
        shown: Arc<Mutex<Vec<u64>>>,
    }

    impl Instrument for Flaky {
        fn step(&mut self, report: &StepReport<'_>) -> Result<()> {
            let step = report.metrics.step;
            if (self.fails)(step) {
                return Err(Error::Plan("no room".into()));
            }
            self.shown.lock().expect("no panic").push(step);
            Ok(())
        }
    }

    #[test]
    fn one_that_fails_keeps_neither_the_others_nor_itself_from_later_steps() {
        let shown: [Arc<Mutex<Vec<u64>>>; 2] = Default::default();
        let mut instruments = Instruments::default();
        instruments.push(Flaky { fails: |step| step != 3, shown: shown[0].clone() });
        instruments.push(Flaky { fails: |_| false, shown: shown[1].clone() });
        let log = tempfile::NamedTempFile::new().expect("a file");
        let file = log.reopen().expect("the file");
        let subscriber = tracing_subscriber::fmt().with_writer(Mutex::new(file)).finish();
        let _guard = tracing::subscriber::set_default(subscriber);
        for step in 1..=4 {
            let metrics = StepMetrics { step, ..StepMetrics::default() };
            instruments.step(&StepReport { metrics: &metrics, loads: None, watched: &[] });
        }
        let shown = shown.map(|shown| shown.lock().expect("no panic").clone());
        assert_eq!(shown, [vec![3], vec![1, 2, 3, 4]]);
        let log = std::fs::read_to_string(log.path()).expect("text");
        assert_eq!(log.matches("no room; training goes on without it").count(), 1, "{log}");
    }
}
