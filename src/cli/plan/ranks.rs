//! The exchanges of the ranks of a run and the time of a step, as text.

use super::machine::MachineArguments;
use super::report::{amount, with_prefix};
use super::warnings::warnings;
use crate::error::Result;
use crate::kernels::Capabilities;
use crate::perf::forecast::{RankForecast, StepTime};
use crate::ranks::RankLayout;
use crate::settings::{RunPlan, Sharded};
use crate::train::length::RunLength;
use indicatif::{HumanBytes, HumanCount, HumanDuration};
use std::time::Duration;

/// The forecast for each of the ranks, as text.
pub struct RankReport {
    /// The forecast.
    pub forecast: RankForecast,
    machine: MachineArguments,
}

impl RankReport {
    /// The ranks of `plan` on devices with the capabilities `adapter`, for schedules of `steps` steps.
    ///
    /// # Errors
    /// A plan that does not fit the adapter; degrees that do not divide the model.
    pub fn new(
        plan: &RunPlan,
        adapter: Capabilities,
        steps: u64,
        arguments: &MachineArguments,
    ) -> Result<Self> {
        let machine = arguments.machine(plan.layout.world());
        let forecast = RankForecast::new(plan, adapter, steps, machine.as_ref())?;
        Ok(Self { forecast, machine: arguments.clone() })
    }

    /// How ranks share the work; empty for one rank.
    pub fn layout(&self, plan: &RunPlan) -> Vec<String> {
        let RankLayout { data, expert, model, pipeline, .. } = plan.layout;
        let world = plan.layout.world();
        if world == 1 {
            return Vec::new();
        }
        let degrees = [("data", data), ("model", model), ("pipeline", pipeline)];
        let above_one = degrees.into_iter().filter(|(_, degree)| *degree > 1);
        let product: Vec<String> = above_one.map(|(name, degree)| format!("{name} {degree}")).collect();
        let mut lines = vec![format!("ranks    {}: {}", HumanCount(world as u64), product.join(" x "))];
        if expert > 1 {
            lines.push(format!("         experts over {expert} neighbours of the data ranks"));
        }
        let block = plan.sharding.ranks;
        let shared = match plan.sharding.what {
            Sharded::None => None,
            Sharded::Optimizer => Some("moments and master weights (ZeRO-1)"),
            Sharded::Gradients => Some("moments, master weights and gradients (ZeRO-2)"),
        };
        lines.extend(shared.map(|shared| format!("         {block} share {shared}")));
        if plan.sharding.gathers_again {
            lines.push("         weights are gathered for each pass and dropped after it".to_string());
        }
        lines
    }

    /// Bytes, time and warnings; empty for one rank whose device is not known.
    pub fn exchanges(&self, plan: &RunPlan, length: Option<&RunLength>) -> Vec<String> {
        let mut lines = Vec::new();
        if plan.layout.world() > 1 {
            lines.extend(self.traffic());
        }
        match &self.forecast.time {
            Some(time) => lines.extend(self.time(plan, length, time)),
            None if plan.layout.world() > 1 => {
                lines.push("time     is predicted with --device-tflops and --link-gbs".to_string())
            }
            None => (),
        }
        let warnings = warnings(plan, &self.forecast, self.machine.ranks_per_node);
        lines.extend(warnings.into_iter().map(|warning| format!("warning  {warning}")));
        lines
    }

    fn traffic(&self) -> Vec<String> {
        let traffic = &self.forecast.traffic;
        let sent = traffic.iter().map(|kind| kind.bytes).sum();
        let mut lines =
            vec![format!("exchange {} sent by a rank in a step, as much received", HumanBytes(sent))];
        lines.extend(traffic.iter().map(|one| {
            let what = format!("{} in {} exchanges", one.kind, HumanCount(one.exchanges));
            amount(one.bytes, "of", &what)
        }));
        let kept = self.forecast.kept_bytes;
        lines.extend(
            (kept > 0).then(|| amount(kept, "of", "hot experts' rows are not sent: they have copies")),
        );
        lines
    }

    fn time(&self, plan: &RunPlan, length: Option<&RunLength>, time: &StepTime) -> Vec<String> {
        let seconds = time.seconds();
        let rate = with_prefix(plan.tokens_per_step as f64 / seconds);
        let mut lines = vec![format!("time     {} a step, {rate}tokens a second", duration(seconds))];
        lines.extend(length.map(|RunLength { total_steps, .. }| {
            let whole = HumanDuration(
                Duration::try_from_secs_f64(seconds * *total_steps as f64).unwrap_or(Duration::MAX),
            );
            format!("         {whole} for the {} steps of the run", HumanCount(*total_steps))
        }));
        let mut parts = vec![(time.compute, "of launches".to_string())];
        parts.extend(time.waits.iter().map(|(kind, seconds)| (*seconds, format!("waiting for {kind}"))));
        if time.bubble > 0.0 {
            let what = format!("waiting for other stages, a bubble of {:.1} %", 100.0 * self.forecast.bubble);
            parts.push((time.bubble, what));
        }
        let share = |part: f64| 100.0 * part / seconds;
        parts.retain(|(part, _)| share(*part) >= 0.05);
        lines.extend(
            parts.iter().map(|(part, what)| {
                format!("         {:>11} {:>5.1} % {what}", duration(*part), share(*part))
            }),
        );
        let hidden = time.exchanging - time.waiting();
        if time.exchanging > 0.0 {
            let hidden = duration(hidden.max(0.0));
            lines.push(format!(
                "         {:>11} of exchanges, {hidden} behind launches",
                duration(time.exchanging)
            ));
        }
        if let Some((_, what)) = parts.iter().max_by(|one, other| one.0.total_cmp(&other.0)) {
            lines.push(format!("         bound by {}", what.replace("of launches", "launches")));
        }
        let assumed = self.machine.assumed(plan.layout.world());
        lines.extend(assumed.iter().enumerate().map(|(line, text)| match line {
            0 => format!("         with {text}"),
            _ => format!("         {text}"),
        }));
        lines
    }
}

/// `1.32 s`, `45.1 ms` or `17 us`.
fn duration(seconds: f64) -> String {
    match seconds {
        _ if seconds >= 100.0 => format!("{seconds:.0} s"),
        _ if seconds >= 1.0 => format!("{seconds:.2} s"),
        _ if seconds >= 1e-3 => format!("{:.1} ms", 1e3 * seconds),
        _ => format!("{:.0} us", 1e6 * seconds),
    }
}

#[cfg(test)]
mod tests {
    use super::duration;

    #[test]
    fn durations_have_three_digits() {
        let wanted =
            [(1234.5, "1234 s"), (12.345, "12.35 s"), (0.0451, "45.1 ms"), (17e-6, "17 us"), (0.0, "0 us")];
        wanted.into_iter().for_each(|(seconds, text)| assert_eq!(duration(seconds), text));
    }
}
