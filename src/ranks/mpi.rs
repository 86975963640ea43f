//! Ranks as processes of MPI, on one machine or many. The only file that uses MPI.
//!
//! All calls are made by the thread that connects, the communication thread, so `MPI_THREAD_FUNNELED` is enough.

use super::Transport;
use super::patience::Patience;
use super::transport::wrong_length;
use crate::error::{Error, Result};
use mpi::Threading;
use mpi::environment::Universe;
use mpi::ffi;
use mpi::topology::{Communicator, SimpleCommunicator};
use mpi::traits::AsRaw;
use std::ffi::{CStr, c_char, c_int};
use std::time::Duration;

/// The exit code of every process when one aborts.
const ABORTED: c_int = 2;

/// The time that a process that aborts leaves `mpirun` to pass on the printed lines, which it may otherwise lose.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Bytes of the longest message. MPI counts them in 32 bits, and a wait notices no progress within a message, so longer
/// messages are sent in pieces.
const LONGEST: usize = 1 << 20;

/// The processes of an MPI job, from the view of one of them.
struct Processes {
    rank: usize,
    size: usize,
    local_rank: usize,
    world: SimpleCommunicator,
    /// Finalises MPI when it is dropped.
    _universe: Universe,
}

/// The messages of an exchange that are under way.
#[derive(Default)]
struct Flight {
    requests: Vec<ffi::MPI_Request>,
    pieces: Vec<Piece>,
}

/// A message, or a piece of one.
struct Piece {
    peer: usize,
    bytes: usize,
    is_received: bool,
}

/// Initialises MPI and connects this process with the others of its job. MPI is finalised when the transport is
/// dropped, on the same thread. An exchange that fails prints its error and ends all processes with exit code 2.
///
/// # Errors
/// MPI is already in use, or allows no threads.
pub fn connect() -> Result<Box<dyn Transport>> {
    let in_use = || Error::Ranks("MPI is initialised already; start one run in a process".into());
    let (universe, threading) = mpi::initialize_with_threading(Threading::Funneled).ok_or_else(in_use)?;
    if threading < Threading::Funneled {
        let line = "this MPI library supports no threads; build with one that does (MPI_THREAD_FUNNELED)";
        return Err(Error::Ranks(line.into()));
    }
    let world = universe.world();
    let place = [world.rank(), world.size(), world.split_shared(world.rank()).rank()];
    // SAFETY: the communicator is valid, and the handler a constant of MPI.
    let code = unsafe { ffi::MPI_Comm_set_errhandler(world.as_raw(), ffi::RSMPI_ERRORS_RETURN) };
    assert_eq!(code, 0, "MPI accepts its own error handler");
    let [rank, size, local_rank] = place.map(|number| number as usize);
    Ok(Box::new(Processes { rank, size, local_rank, world, _universe: universe }))
}

impl Transport for Processes {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn local_rank(&self) -> usize {
        self.local_rank
    }

    fn exchange(&mut self, outgoing: &[(usize, &[u8])], incoming: &mut [(usize, &mut [u8])]) -> Result<()> {
        let mut flight = Flight::default();
        let done = flight.start(self.world.as_raw(), outgoing, incoming).and_then(|()| flight.land());
        // The error is not returned: MPI may still write to `incoming`.
        done.map_err(|error| {
            eprintln!("error: rank {}: {error}", self.rank);
            self.end()
        })
    }

    fn abort(&mut self) {
        self.end();
    }
}

impl Processes {
    fn end(&self) -> ! {
        std::thread::sleep(LAST_WORDS);
        self.world.abort(ABORTED)
    }
}

impl Flight {
    /// Starts receiving and sending. The messages must stay in place until [`Flight::land`] has returned.
    fn start(
        &mut self,
        world: ffi::MPI_Comm,
        outgoing: &[(usize, &[u8])],
        incoming: &mut [(usize, &mut [u8])],
    ) -> Result<()> {
        for (peer, message) in incoming {
            for piece in message.chunks_mut(LONGEST) {
                self.add(*peer, piece.len(), true, |request| {
                    let (at, count) = (piece.as_mut_ptr().cast(), piece.len() as c_int);
                    // SAFETY: `at` has `count` bytes, which nobody else uses until the exchange is done.
                    unsafe {
                        ffi::MPI_Irecv(at, count, ffi::RSMPI_UINT8_T, *peer as c_int, 0, world, request)
                    }
                })?;
            }
        }
        for (peer, message) in outgoing {
            for piece in message.chunks(LONGEST) {
                self.add(*peer, piece.len(), false, |request| {
                    let (at, count) = (piece.as_ptr().cast(), piece.len() as c_int);
                    // SAFETY: `at` has `count` bytes, which nobody writes until the exchange is done.
                    unsafe {
                        ffi::MPI_Isend(at, count, ffi::RSMPI_UINT8_T, *peer as c_int, 0, world, request)
                    }
                })?;
            }
        }
        Ok(())
    }

    fn add(
        &mut self,
        peer: usize,
        bytes: usize,
        is_received: bool,
        start: impl FnOnce(*mut ffi::MPI_Request) -> c_int,
    ) -> Result<()> {
        // SAFETY: reads a constant of MPI.
        let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
        let code = start(&raw mut request);
        self.requests.push(request);
        self.pieces.push(Piece { peer, bytes, is_received });
        if code == 0 { Ok(()) } else { Err(failed(peer, code)) }
    }

    /// Waits until all messages have arrived.
    fn land(&mut self) -> Result<()> {
        let count = self.requests.len();
        let mut indices = vec![0; count];
        // SAFETY: the struct consists of numbers.
        let mut statuses: Vec<ffi::MPI_Status> = vec![unsafe { std::mem::zeroed() }; count];
        let (mut landed, mut patience) = (0, Patience::new());
        while landed < count {
            let mut some: c_int = 0;
            // SAFETY: the arrays have `count` entries, and the messages of all requests are in place.
            let code = unsafe {
                ffi::MPI_Testsome(
                    count as c_int,
                    self.requests.as_mut_ptr(),
                    &raw mut some,
                    indices.as_mut_ptr(),
                    statuses.as_mut_ptr(),
                )
            };
            let some = usize::try_from(some).unwrap_or(0);
            for (index, status) in indices[..some].iter().zip(&statuses) {
                self.pieces[*index as usize].check(status, code)?;
            }
            if code != 0 {
                return Err(Error::Ranks(format!("an exchange failed: {}", describe(code))));
            }
            landed += some;
            if some > 0 { patience.renew() } else { patience.wait() }
        }
        Ok(())
    }
}

impl Piece {
    /// Fails if the message failed, or is not as long as this rank expects; `code` is the result of the whole test.
    fn check(&self, status: &ffi::MPI_Status, code: c_int) -> Result<()> {
        if code != 0 && status.MPI_ERROR != 0 {
            return Err(failed(self.peer, status.MPI_ERROR));
        }
        let mut arrived: c_int = 0;
        // SAFETY: the status is that of a message of this type.
        unsafe { ffi::MPI_Get_count(status, ffi::RSMPI_UINT8_T, &raw mut arrived) };
        let is_whole = arrived as usize == self.bytes;
        if self.is_received && !is_whole {
            return Err(wrong_length(self.peer, arrived as usize, self.bytes));
        }
        Ok(())
    }
}

fn failed(peer: usize, code: c_int) -> Error {
    Error::Ranks(format!("the exchange with rank {peer} failed: {}", describe(code)))
}

/// MPI's own words for `code`, in one line.
fn describe(code: c_int) -> String {
    let mut text: [c_char; ffi::MPI_MAX_ERROR_STRING as usize + 1] = [0; _];
    let mut length = 0;
    // SAFETY: the text has room for the longest message, and ends with a 0 since it has one more byte.
    let text = unsafe {
        ffi::MPI_Error_string(code, text.as_mut_ptr(), &raw mut length);
        CStr::from_ptr(text.as_ptr())
    };
    text.to_string_lossy().split_whitespace().collect::<Vec<_>>().join(" ")
}
