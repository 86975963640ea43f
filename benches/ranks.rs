//! How long ranks take to exchange, and what waiting costs: `cargo bench --bench ranks`, or with MPI
//! `cargo bench --features mpi --bench ranks --no-run` and `mpirun -n 2 target/release/deps/ranks-...`.

use gristmill::ranks::collectives::{Reduction, all_reduce};
use gristmill::ranks::{Group, Ranks, Transport, in_process, launcher, mpi};
use std::time::{Duration, Instant};

/// Bytes that are summed over all ranks.
const SIZES: [usize; 4] = [64, 64 << 10, 4 << 20, 64 << 20];

/// How long each size is repeated.
const TIME: Duration = Duration::from_millis(500);

/// How late a rank comes to the exchange that shows what waiting costs.
const LATE: Duration = Duration::from_millis(100);

fn main() {
    if launcher::processes() > 1 {
        let ranks = Ranks::start(mpi::connect).expect("processes of MPI");
        measure("MPI", &ranks);
        return;
    }
    for size in [2, 4] {
        std::thread::scope(|scope| {
            for end in in_process::connect(size) {
                let connect = || Ok(Box::new(end) as Box<dyn Transport>);
                scope.spawn(|| measure("in process", &Ranks::start(connect).expect("a thread")));
            }
        });
    }
}

/// Prints a row for each size, and how much of a core a rank takes while it waits.
fn measure(transport: &'static str, ranks: &Ranks) {
    let name = format!("{transport}, {} ranks", ranks.size());
    let table = ranks.run(move |t| {
        let group = Group::all(t.size());
        let mut rows = String::new();
        for bytes in SIZES {
            let each = all_reduce_time(t, &group, bytes);
            let moved = bytes as f64 * 2.0 * (group.size() - 1) as f64 / group.size() as f64;
            let (micros, rate) = (each.as_secs_f64() * 1e6, moved / each.as_secs_f64() / 1e9);
            rows += &format!("{name}: {bytes:>9} bytes in {micros:>8.0} us, {rate:.2} GB/s\n");
        }
        let share = 100.0 * waiting_share(t, &group);
        Ok(rows + &format!("{name}: a rank that waits takes {share:.1} % of a core\n"))
    });
    let table = pollster::block_on(table).expect("no rank ends");
    if ranks.rank() == 0 {
        print!("{table}");
    }
}

/// The median time of an all-reduce of `bytes`.
fn all_reduce_time(t: &mut dyn Transport, group: &Group, bytes: usize) -> Duration {
    let (mut data, mut scratch) = (vec![0; bytes], Vec::new());
    let mut once = |t: &mut dyn Transport| {
        let start = Instant::now();
        all_reduce(t, group, &mut data, Reduction::SumF32, &mut scratch).expect("no rank ends");
        start.elapsed()
    };
    (0..3).for_each(|_| {
        once(t);
    });
    // All ranks repeat it equally often: the mean of what each has time for.
    let count = ((TIME.as_secs_f64() / once(t).as_secs_f64()) as u32).clamp(9, 20_000);
    let mut counts = count.to_ne_bytes();
    all_reduce(t, group, &mut counts, Reduction::SumU32, &mut Vec::new()).expect("no rank ends");
    let count = u32::from_ne_bytes(counts) / group.size() as u32;
    let mut times: Vec<Duration> = (0..count).map(|_| once(t)).collect();
    times.sort_unstable();
    times[times.len() / 2]
}

/// How much of a core the first rank takes while it waits for the last one.
fn waiting_share(t: &mut dyn Transport, group: &Group) -> f64 {
    let (mut waiting, mut running) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..5 {
        if t.rank() + 1 == group.size() {
            std::thread::sleep(LATE);
        }
        let (start, before) = (Instant::now(), busy());
        all_reduce(t, group, &mut [0; 4], Reduction::SumU32, &mut Vec::new()).expect("no rank ends");
        waiting += start.elapsed();
        running += busy() - before;
    }
    running.as_secs_f64() / waiting.as_secs_f64()
}

/// The time that this thread has run, on Linux.
fn busy() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(text.split(' ').next().and_then(|nanos| nanos.parse().ok()).unwrap_or(0))
}
