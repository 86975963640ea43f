//! Checks that all ranks of a run do the same: if not, they would wait for each other's exchanges forever.
//!
//! Settings, data and version are compared before anything is exchanged. Paths of the data and `context`, which
//! describe the machine, may differ as long as the computation does not: where several ranks compute the same update,
//! adapter, driver, tier and conversions of f16 must be those of the first rank, since otherwise their weights would
//! drift apart. Where one rank updates each weight and sends it to the others (`enable_parallel_optimizer` over all
//! data ranks) devices may differ. If one rank must widen f16 in integers, all do, and all divide products for the
//! compute units of the first rank.

use crate::data::LoadedData;
use crate::device::Gpu;
use crate::error::{Error, Result};
use crate::kernels::Units;
use crate::model::arena::ArenaLayout;
use crate::ranks::Ranks;
use crate::settings::{Context, RunPlan, Sharded};
use crate::train::recordings::Recordings;
use crate::train::run::data_watch::unlike;

/// Fails on all ranks if one has other settings, data or code than the first one. Settings of the machine, and the
/// place of the data on it, may differ. Returns whether this rank's data are in the same place as those of the first
/// rank, on whichever machine.
///
/// # Errors
/// The difference, on the first rank that differs; a rank that has ended.
pub(crate) async fn check_run(ranks: &Ranks, plan: &RunPlan, data: &LoadedData) -> Result<bool> {
    let place = format!("{:?} {}", std::env::current_dir().ok(), plan.to_yaml());
    let mut shared = plan.clone();
    let settings = &mut shared.settings;
    settings.context = Context::default();
    [&mut settings.train_dataset]
        .into_iter()
        .chain(&mut settings.eval_dataset)
        .for_each(|data| data.forget_paths());
    let datasets = [&data.train].into_iter().chain(&data.eval);
    let fingerprints: Vec<String> = datasets.map(|data| format!("{:016x}", data.fingerprint())).collect();
    let own = RankIdentity {
        version: env!("CARGO_PKG_VERSION").into(),
        settings: shared.to_yaml(),
        data: fingerprints.join(" and "),
        hash: data.hashes().map(|hashes| hashes.combined()),
    };
    check(ranks, own, RankIdentity::difference).await?;
    Ok(ranks.by_first(|| Ok(place.clone())).await? == place)
}

/// Makes all ranks widen f16 in integers if one must, so that all run the same kernels.
///
/// # Errors
/// A rank that has ended.
pub(crate) async fn agree_on_widening(ranks: &Ranks, gpu: &mut Gpu) -> Result<()> {
    let all = ranks.at_first(vec![u8::from(gpu.capabilities().widens_in_integers)]).await?;
    if ranks.by_first(|| Ok(all.contains(&1))).await? {
        gpu.widen_in_integers();
    }
    Ok(())
}

/// Makes all ranks divide products for the compute units of the first one, so that sums have one order.
///
/// # Errors
/// A rank that has ended.
pub(crate) async fn agree_on_units(ranks: &Ranks, gpu: &mut Gpu) -> Result<()> {
    gpu.divide_for(units_of_first(ranks, gpu.capabilities().units).await?);
    Ok(())
}

async fn units_of_first(ranks: &Ranks, own: Units) -> Result<Units> {
    ranks.by_first(|| Ok(own)).await
}

/// Fails on all ranks if one computes on another kind of device than the first one, or with other kernels, while
/// several ranks compute the same update: they would round it differently, and their weights would drift apart. If each
/// weight is updated by one rank, which sends it to the others, devices may differ.
///
/// # Errors
/// The difference, on the first rank that differs; a rank that has ended.
pub(crate) async fn check_devices(ranks: &Ranks, plan: &RunPlan, gpu: &Gpu) -> Result<()> {
    let sharding = &plan.sharding;
    if sharding.what != Sharded::None && sharding.ranks == plan.layout.data {
        return Ok(());
    }
    let report = gpu.report();
    let own = format!("{} ({}, {}), {}", report.name, report.backend, report.driver, gpu.capabilities());
    check(ranks, own, |own, first| {
        (own != first).then(|| {
            format!(
                "its device is {own}, and that of rank 0 {first}: they would round the same update differently, and their \
                 weights would drift apart; give all ranks devices of one kind with context.device_name and one context.tier, \
                 or have each weight updated by one rank with parallel.enable_parallel_optimizer=True"
            )
        })
    })
    .await
}

/// Fails on all ranks if one has divided the parameters differently from the first one, as an adapter with smaller
/// bindings does.
///
/// # Errors
/// The difference, on the first rank that differs; a rank that has ended.
pub(crate) async fn check_division(ranks: &Ranks, gpu: &Gpu, recordings: &Recordings) -> Result<()> {
    // The segments of the whole model; stages hold parts of their own.
    let whole = ArenaLayout::new(recordings.whole.clone(), &gpu.capabilities().limits);
    let segments: Vec<u64> =
        ranks.agree(whole).await?.segments.iter().map(|segment| segment.elements).collect();
    check(ranks, segments, |own, first| {
        (own != first).then(|| {
            let (own, first) = (own.len(), first.len());
            format!(
                "the parameters take {own} buffers here and {first} on rank 0, whose adapter has bindings of another size; give \
                 all ranks adapters of one kind with context.device_name"
            )
        })
    })
    .await
}

/// The properties that all ranks must have in common.
#[derive(Clone, serde::Serialize, serde::Deserialize)]
struct RankIdentity {
    version: String,
    settings: String,
    data: String,
    /// Hash of all data, if they have been read already.
    hash: Option<u64>,
}

impl RankIdentity {
    fn difference(&self, first: &Self) -> Option<String> {
        const REMEDY: &str = "start all ranks with the same program, files and flags";
        if self.version != first.version {
            let (own, first) = (&self.version, &first.version);
            return Some(format!("this is gristmill {own}, and rank 0 is {first}; {REMEDY}"));
        }
        if let Some((own, first)) = differing_lines(&self.settings, &first.settings) {
            return Some(format!("its settings have `{own}` where those of rank 0 have `{first}`; {REMEDY}"));
        }
        if self.data != first.data {
            let (own, first) = (&self.data, &first.data);
            return Some(format!(
                "its data have the fingerprint {own}, and those of rank 0 {first}; {REMEDY}"
            ));
        }
        let hashes = self.hash.zip(first.hash).filter(|(own, first)| own != first);
        hashes.map(|(own, first)| unlike(own, first))
    }
}

/// The first lines in which the two texts differ.
fn differing_lines<'a>(own: &'a str, first: &'a str) -> Option<(&'a str, &'a str)> {
    let count = own.lines().count().max(first.lines().count());
    let lines = |text: &'a str| text.lines().map(str::trim).chain(std::iter::repeat("nothing more"));
    lines(own).zip(lines(first)).take(count).find(|(own, first)| own != first)
}

async fn check<T: serde::Serialize + serde::de::DeserializeOwned + Clone>(
    ranks: &Ranks,
    own: T,
    difference: impl FnOnce(&T, &T) -> Option<String>,
) -> Result<()> {
    let first = ranks.by_first(|| Ok(own.clone())).await?;
    let is_first = ranks.is_first();
    let difference = if is_first { None } else { difference(&own, &first) };
    ranks.agree(difference.map_or(Ok(()), |difference| Err(Error::Ranks(difference)))).await
}

#[cfg(test)]
mod tests;
