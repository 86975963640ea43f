//! Whether `mpirun` or another launcher of MPI has started this process, with how many others.
//!
//! Launchers set variables with the number of processes, so a run without one needs no MPI, and a program without
//! the feature can say what it lacks. If MPI then connects another number, as with an `mpirun` of another library,
//! each process would train by itself in the same folder, so that is an error.

use std::env;

/// Variables with the number of processes, and the one with this process's number that belongs to it: of MPICH, Intel's and
/// Microsoft's MPI and Slurm's PMI; of Open MPI; of Slurm's PMIx, which has no number of its own.
const SIZES: [(&str, &str); 3] = [
    ("PMI_SIZE", "PMI_RANK"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("SLURM_STEP_NUM_TASKS", "PMIX_RANK"),
];

/// How many processes have been started together; 1 without a launcher, so that a run needs none.
pub fn processes() -> usize {
    place(|name| env::var(name).ok()).1
}

/// Which of them this is, from 0, before MPI is initialised.
pub fn process() -> usize {
    place(|name| env::var(name).ok()).0
}

/// Rank and size by the variables.
fn place(variable: impl Fn(&str) -> Option<String>) -> (usize, usize) {
    let number = |name: &str| variable(name)?.trim().parse::<usize>().ok();
    let places = SIZES.iter().filter_map(|(size, rank)| Some((number(rank)?, number(size)?)));
    places.max_by_key(|(_, size)| *size).unwrap_or((0, 1))
}

#[cfg(test)]
mod tests {
    use super::place;

    fn in_environment(text: &str) -> (usize, usize) {
        let variables: Vec<(&str, &str)> = text.split(' ').filter_map(|pair| pair.split_once('=')).collect();
        place(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string()))
    }

    #[test]
    fn launchers_say_who_a_process_is() {
        assert_eq!(in_environment(""), (0, 1));
        assert_eq!(in_environment("PMI_RANK=2 PMI_SIZE=4"), (2, 4));
        assert_eq!(in_environment("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=8 PMIX_RANK=1"), (1, 8));
        assert_eq!(in_environment("SLURM_STEP_NUM_TASKS=16 PMIX_RANK=3"), (3, 16));
        // A batch script of several tasks that starts the program by itself.
        assert_eq!(in_environment("SLURM_STEP_NUM_TASKS=16"), (0, 1));
    }
}
