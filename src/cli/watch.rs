//! `--watch`: serves the report of a run while it trains, as a page that updates itself.
//!
//! The server has its own threads and reads the files of the run folder, so it costs a step nothing: neither a slow
//! browser nor a closed one, nor anything that is sent to the port, can delay a run.
//!
//! The page asks for the data after the last step that it knows. A *generation* shows whether bins of its curves have
//! merged since, in which case it gets everything again. Requests have deadlines, and the number of connections is
//! bounded. On loopback the header `Host` must name this machine; otherwise a page of a foreign name that resolves to
//! it could read the report (DNS rebinding). When the run has ended and a page has asked recently, the server stays
//! until the page has asked once more, so that it shows the end.

mod address;
mod connection;
mod request;

pub use address::WatchAddress;

use self::connection::{DEADLINE, serve};
use crate::error::Result;
use crate::report::page::{Known, POLL, RunFiles, live_data, live_page};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Further connections are closed at once. Each takes a thread, an idle connection for as long as its request may take
/// to arrive.
const MOST_CONNECTIONS: usize = 256;

/// Number of ports after the default one that are tried, so that as many runs can be watched on one machine.
const NEXT_PORTS: u16 = 31;

/// Longest delay of a page's next request.
const LATE: Duration = Duration::from_millis(500);

/// Stack of a connection's thread, small because a request and its answer are on the heap.
const STACK_BYTES: usize = 256 << 10;

/// Serves a run until it is dropped, when the run has ended. Pages that are open then are served until they have asked
/// once more, so that they show how the run ended.
pub struct Watcher {
    shared: Arc<Shared>,
    /// The thread that accepts connections and owns the port.
    acceptor: Option<JoinHandle<()>>,
}

/// The state that the threads of a server share.
struct Shared {
    folder: PathBuf,
    server: WatchAddress,
    /// The data read from the folder; `None` before the first request, and after a fault.
    files: Mutex<Option<RunFiles>>,
    connections: AtomicUsize,
    /// When a page, or new data for it, was last asked for.
    asked: Mutex<Option<Instant>>,
    has_run_ended: AtomicBool,
    is_over: AtomicBool,
}

impl Watcher {
    /// Serves the run in `folder` at `address` and logs where. If that is not possible, a warning says why, and there
    /// is no page: it is not worth a run.
    pub fn start(address: WatchAddress, folder: &Path) -> Option<Self> {
        let asked = address.to_string();
        let started = bind(&address).and_then(|listener| Self::serve(listener, address, folder));
        match started {
            Ok(watcher) => {
                tracing::info!("this run can be watched at http://{}/", watcher.shared.server);
                if !watcher.address().ip().is_loopback() {
                    tracing::warn!(
                        "--watch {asked}: anybody who reaches this address can read the run's settings and samples"
                    );
                }
                Some(watcher)
            }
            Err(error) => {
                let reason = match error.kind() {
                    ErrorKind::AddrInUse => "another program uses this port; choose another".to_string(),
                    ErrorKind::PermissionDenied => "no permission; choose a port from 1024".to_string(),
                    ErrorKind::AddrNotAvailable => "this machine does not have this address".to_string(),
                    _ => error.to_string(),
                };
                tracing::warn!("--watch {asked}: {reason}. The run goes on and cannot be watched");
                None
            }
        }
    }

    fn serve(listener: TcpListener, asked: WatchAddress, folder: &Path) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            folder: folder.to_path_buf(),
            server: WatchAddress { address, ..asked },
            files: Mutex::new(None),
            connections: AtomicUsize::new(0),
            asked: Mutex::new(None),
            has_run_ended: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        });
        let of_thread = shared.clone();
        let acceptor = Builder::new().name("watch".into()).spawn(move || accept(&listener, &of_thread))?;
        Ok(Self { shared, acceptor: Some(acceptor) })
    }

    fn address(&self) -> SocketAddr {
        self.shared.server.address
    }

    /// The address at which this machine itself reaches the server, which may listen on all of its addresses.
    fn own_address(&self) -> SocketAddr {
        let address = self.address();
        let ip = match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        SocketAddr::new(ip, address.port())
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.shared.has_run_ended.store(true, Ordering::Relaxed);
        if self.shared.has_open_page() {
            std::thread::sleep(POLL + LATE);
        }
        self.shared.is_over.store(true, Ordering::Relaxed);
        // Wakes the thread that waits for connections. It closes the port when it ends; if it cannot be woken it is
        // left behind.
        let woken = TcpStream::connect_timeout(&self.own_address(), Duration::from_millis(100));
        if let (Ok(_), Some(acceptor)) = (woken, self.acceptor.take()) {
            let _ = acceptor.join();
        }
    }
}

impl Shared {
    /// The page in the current state of the run.
    fn page(&self) -> Result<String> {
        self.with_files(|files| live_page(files, self.is_running()))
    }

    /// The data that is new since `known`, as JSON.
    fn data(&self, known: Option<Known>) -> Result<String> {
        self.with_files(|files| live_data(files, known, self.is_running()))
    }

    fn is_running(&self) -> bool {
        !self.has_run_ended.load(Ordering::Relaxed)
    }

    /// Whether a page has asked so recently that it will ask again.
    fn has_open_page(&self) -> bool {
        let asked = *self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.is_some_and(|asked| asked.elapsed() < POLL + LATE)
    }

    fn with_files(&self, answer: impl FnOnce(&RunFiles) -> String) -> Result<String> {
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        let mut kept = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let files = match kept.take() {
            Some(mut files) => files.refresh().map(|()| files)?,
            None => RunFiles::open(&self.folder)?,
        };
        Ok(answer(kept.insert(files)))
    }
}

/// Listens at `asked`. If that port is taken and nobody has asked for it explicitly, listens at the first free one of
/// the next ports.
fn bind(asked: &WatchAddress) -> io::Result<TcpListener> {
    let WatchAddress { address, may_move, .. } = *asked;
    let ports = address.port()..=address.port() + if may_move { NEXT_PORTS } else { 0 };
    let mut bound = Err(ErrorKind::AddrInUse.into());
    for port in ports {
        bound = TcpListener::bind(SocketAddr::new(address.ip(), port));
        if !matches!(&bound, Err(error) if error.kind() == ErrorKind::AddrInUse) {
            break;
        }
    }
    bound
}

/// Gives each connection a thread, until the run has ended.
fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for connection in listener.incoming() {
        if shared.is_over.load(Ordering::Relaxed) {
            return;
        }
        let Ok(connection) = connection else {
            // There may be no file descriptors left: trying again at once would keep a core busy.
            std::thread::sleep(Duration::from_millis(200));
            continue;
        };
        if shared.connections.fetch_add(1, Ordering::Relaxed) >= MOST_CONNECTIONS {
            shared.connections.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let of_thread = shared.clone();
        let spawned = Builder::new().name("watcher".into()).stack_size(STACK_BYTES).spawn(move || {
            // A browser that has disconnected is no fault.
            let _ = serve(connection, &of_thread);
            of_thread.connections.fetch_sub(1, Ordering::Relaxed);
        });
        if spawned.is_err() {
            shared.connections.fetch_sub(1, Ordering::Relaxed);
            std::thread::sleep(DEADLINE / 10);
        }
    }
}

#[cfg(test)]
mod tests;
