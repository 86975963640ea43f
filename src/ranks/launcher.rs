//! Whether `mpirun` or another MPI launcher has started this process, and with how many others.
//!
//! Launchers set variables with the number of processes, so a run without a launcher needs no MPI, and a program
//! without the feature can say that it lacks MPI. If MPI then connects another number of processes, for example because
//! `mpirun` belongs to another library, each process would train by itself in the same folder, so that is an error.

use std::env;

/// Variables with the number of processes, each with the variable that has this process's number: of MPICH, Intel's and
/// Microsoft's MPI and Slurm's PMI; of Open MPI; of Slurm's PMIx, which has no variable of its own for the size.
const SIZES: [(&str, &str); 3] = [
    ("PMI_SIZE", "PMI_RANK"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("SLURM_STEP_NUM_TASKS", "PMIX_RANK"),
];

/// Number of processes that have been started together; 1 without a launcher.
pub fn processes() -> usize {
    place(|name| env::var(name).ok()).1
}

/// The number of this process, from 0, before MPI is initialised.
pub fn process() -> usize {
    place(|name| env::var(name).ok()).0
}

/// Rank and size from the variables.
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
        // A batch script of several tasks that starts the program directly.
        assert_eq!(in_environment("SLURM_STEP_NUM_TASKS=16"), (0, 1));
    }
}
