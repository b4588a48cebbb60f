//! How the processes of a run find each other, and hear of each other's end. Rank 0 listens; the others
//! connect, say who they are, and get what rank 0 has for them once everybody is there. The connections
//! stay, with nothing on them, for as long as the run: one that breaks is a rank that has died.

#[cfg(test)]
mod tests;

use super::environment::Rendezvous;
use crate::error::{Error, Result};
use parking_lot::Mutex;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const MAGIC: [u8; 8] = *b"capgrad1";
/// A greeting: the magic, the world's size, the rank.
const GREETING: usize = 16;
/// How often sockets are looked at.
const PAUSE: Duration = Duration::from_millis(10);
/// Bytes that one message may have; anything longer is not from this crate.
const LONGEST: usize = 1 << 16;
/// How long others may need for what a rank that has left in order took part in.
const GRACE: Duration = Duration::from_secs(5);

/// Kinds of messages: an answer, a failure (the text follows), an orderly end.
const READY: u8 = b'R';
const FAILED: u8 = b'F';
const LEAVING: u8 = b'L';

/// The processes of a run, as one of them sees them.
pub(crate) struct Group {
    health: Arc<Health>,
    links: Arc<Mutex<Vec<Link>>>,
    watcher: Option<JoinHandle<()>>,
}

/// What is known of the others.
#[derive(Default)]
struct Health {
    /// Why nothing can go on.
    lost: Mutex<Option<String>>,
    /// When the first one left in order, and who.
    left: Mutex<Option<(Instant, usize)>>,
    over: AtomicBool,
}

/// A connection to a rank, and what of a message has come so far.
struct Link {
    rank: usize,
    stream: TcpStream,
    buffer: Vec<u8>,
    open: bool,
}

impl Link {
    fn new(rank: usize, stream: TcpStream) -> Link {
        Link { rank, stream, buffer: Vec::new(), open: true }
    }

    /// Reads what is there; whether the other end has closed.
    fn fill(&mut self) -> bool {
        let mut bytes = [0; 512];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return true,
                Ok(count) => self.buffer.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return true,
            }
            if self.buffer.len() > LONGEST {
                return true;
            }
        }
    }

    /// The next whole message.
    fn message(&mut self) -> Option<(u8, Vec<u8>)> {
        let length = u32::from_le_bytes(self.buffer.get(1..5)?.try_into().ok()?) as usize;
        let text = self.buffer.get(5..5 + length)?.to_vec();
        let kind = self.buffer[0];
        self.buffer.drain(..5 + length);
        Some((kind, text))
    }

    /// Says something; one that does not listen any more is found out when it is read from.
    fn send(&mut self, kind: u8, text: &[u8]) {
        let mut bytes = vec![kind];
        bytes.extend_from_slice(&(text.len() as u32).to_le_bytes());
        bytes.extend_from_slice(text);
        let mut rest = &bytes[..];
        let deadline = Instant::now() + Duration::from_secs(1);
        while !rest.is_empty() && Instant::now() < deadline {
            match self.stream.write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(PAUSE),
                Err(_) => return,
            }
        }
    }
}

impl Group {
    /// Meets the others, and gives what rank 0 brought.
    pub(crate) fn meet(
        it: &Rendezvous,
        bring: impl FnOnce() -> Result<Vec<u8>>,
    ) -> Result<(Group, Vec<u8>)> {
        if it.world_size == 0 || it.rank >= it.world_size {
            let reason = "ranks are from 0 to one less than the world's size";
            return Err(failed(it, reason));
        }
        let deadline = Instant::now() + it.timeout;
        let places = resolve(it)?;
        let (links, brought) = if it.rank == 0 {
            let listener = listen(it, &places)?;
            let brought = bring()?;
            let mut links = gather(it, &listener, deadline)?;
            links.iter_mut().for_each(|link| link.send(READY, &brought));
            (links, brought)
        } else {
            let (link, brought) = join(it, &places, deadline)?;
            (vec![link], brought)
        };
        let health = Arc::new(Health::default());
        let links = Arc::new(Mutex::new(links));
        let watched = (health.clone(), links.clone());
        let watcher = std::thread::Builder::new()
            .name("capgrad-ranks".into())
            .spawn(move || watch(&watched.0, &watched.1))
            .map_err(|error| failed(it, format!("no thread could be started: {error}")))?;
        Ok((Group { health, links, watcher: Some(watcher) }, brought))
    }

    /// Why the run cannot go on, if it cannot.
    pub(crate) fn lost(&self) -> Option<String> {
        if let Some(why) = &*self.health.lost.lock() {
            return Some(why.clone());
        }
        let left = *self.health.left.lock();
        left.filter(|(since, _)| since.elapsed() > GRACE)
            .map(|(_, rank)| format!("rank {rank} has left the run"))
    }

    /// Tells the others that this rank cannot go on.
    pub(crate) fn fail(&self, why: &str) {
        self.health.lost.lock().get_or_insert_with(|| why.to_owned());
        tell(&mut self.links.lock(), FAILED, why, None);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.health.over.store(true, Ordering::Relaxed);
        let mut links = self.links.lock();
        if std::thread::panicking() {
            tell(&mut links, FAILED, "a peer has panicked", None);
        } else {
            tell(&mut links, LEAVING, "", None);
        }
        drop(links);
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
    }
}

fn tell(links: &mut [Link], kind: u8, text: &str, but: Option<usize>) {
    for link in links.iter_mut().filter(|link| link.open && Some(link.rank) != but) {
        link.send(kind, text.as_bytes());
    }
}

/// Listens to the others until the group is given up; rank 0 hands on what it hears.
fn watch(health: &Health, links: &Mutex<Vec<Link>>) {
    while !health.over.load(Ordering::Relaxed) {
        std::thread::sleep(PAUSE);
        let mut held = links.lock();
        let mut news: Vec<(usize, String)> = Vec::new();
        for link in held.iter_mut().filter(|link| link.open) {
            let closed = link.fill();
            while let Some((kind, text)) = link.message() {
                match kind {
                    LEAVING => {
                        link.open = false;
                        health.left.lock().get_or_insert((Instant::now(), link.rank));
                    }
                    _ => news.push((link.rank, String::from_utf8_lossy(&text).into_owned())),
                }
            }
            if closed && link.open {
                link.open = false;
                news.push((link.rank, format!("rank {} has died", link.rank)));
            }
        }
        for (from, why) in news {
            health.lost.lock().get_or_insert_with(|| why.clone());
            tell(&mut held, FAILED, &why, Some(from));
        }
    }
}

fn failed(it: &Rendezvous, reason: impl Into<String>) -> Error {
    Error::communication("rendezvous", it.rank, it.world_size, reason)
}

fn resolve(it: &Rendezvous) -> Result<Vec<SocketAddr>> {
    let bad = |why: String| {
        failed(
            it,
            format!("{:?} is no place to meet ({why}); it must be host:port of rank 0", it.address),
        )
    };
    let found: Vec<_> =
        it.address.to_socket_addrs().map_err(|error| bad(error.to_string()))?.collect();
    if found.is_empty() { Err(bad("the name has no address".into())) } else { Ok(found) }
}

/// Where rank 0 listens: on all interfaces, as the name may lead to another one here than elsewhere,
/// unless the name is this machine's own for itself.
fn listen(it: &Rendezvous, places: &[SocketAddr]) -> Result<TcpListener> {
    let port = places[0].port();
    let own = places.iter().all(|place| place.ip().is_loopback());
    let tried: Vec<SocketAddr> = if own {
        places.to_vec()
    } else {
        let any = [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)];
        any.map(|ip| SocketAddr::new(ip, port)).to_vec()
    };
    let mut why = String::new();
    for place in tried {
        match TcpListener::bind(place) {
            Ok(listener) => {
                listener.set_nonblocking(true).map_err(|error| failed(it, error.to_string()))?;
                return Ok(listener);
            }
            Err(error) => why = error.to_string(),
        }
    }
    Err(failed(
        it,
        format!(
            "port {port} cannot be listened at ({why}); another process may be rank 0 too, or use the port: \
             set MASTER_PORT to a free one"
        ),
    ))
}

/// Rank 0: everybody else, once they are all there.
fn gather(it: &Rendezvous, listener: &TcpListener, deadline: Instant) -> Result<Vec<Link>> {
    let mut strangers: Vec<Link> = Vec::new();
    let mut known: Vec<Link> = Vec::new();
    // Who has been here at all.
    let mut came = vec![false; it.world_size];
    let refuse = |known: &mut Vec<Link>, strangers: &mut Vec<Link>, why: String| {
        tell(known, FAILED, &why, None);
        tell(strangers, FAILED, &why, None);
        Err(failed(it, why))
    };
    while known.len() + 1 < it.world_size {
        while let Ok((stream, _)) = listener.accept() {
            if prepare(&stream).is_ok() {
                strangers.push(Link::new(usize::MAX, stream));
            }
        }
        // One that went away again is missing again.
        known.retain_mut(|link| !link.fill());
        let mut at = 0;
        while at < strangers.len() {
            let closed = strangers[at].fill();
            if strangers[at].buffer.len() < GREETING {
                // Somebody else's connection, perhaps; whoever closes it is forgotten.
                if closed {
                    strangers.swap_remove(at);
                } else {
                    at += 1;
                }
                continue;
            }
            let mut link = strangers.swap_remove(at);
            let Some((world, rank)) = greeting(&link.buffer) else { continue };
            link.buffer.drain(..GREETING);
            link.rank = rank;
            let twice = rank == 0 || known.iter().any(|other| other.rank == rank);
            let wrong = (world != it.world_size || rank >= it.world_size).then(|| {
                let here = it.world_size;
                format!("rank {rank} expects {world} ranks, rank 0 expects {here}")
            });
            let wrong = wrong.or_else(|| twice.then(|| format!("two processes are rank {rank}")));
            known.push(link);
            if let Some(came) = came.get_mut(rank) {
                *came = true;
            }
            if let Some(why) = wrong {
                return refuse(&mut known, &mut strangers, why);
            }
        }
        if known.len() + 1 < it.world_size {
            if Instant::now() >= deadline {
                let list = |wanted: &dyn Fn(&usize) -> bool| {
                    let ranks = (1..it.world_size).filter(wanted);
                    ranks.map(|rank| rank.to_string()).collect::<Vec<_>>().join(", ")
                };
                let (within, absent) = (it.timeout, list(&|&rank| !came[rank]));
                // One whose own time was up a moment ago has not been missing.
                let why = if absent.is_empty() {
                    let here = |rank: usize| known.iter().any(|link| link.rank == rank);
                    format!("rank {} came and went away again", list(&|&rank| !here(rank)))
                } else {
                    format!("rank {absent} did not come within {within:?}")
                };
                return refuse(&mut known, &mut strangers, why);
            }
            std::thread::sleep(PAUSE);
        }
    }
    Ok(known)
}

fn greeting(bytes: &[u8]) -> Option<(usize, usize)> {
    let number =
        |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize);
    if bytes.get(..8)? != MAGIC { None } else { Some((number(8)?, number(12)?)) }
}

fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)
}

/// Another rank: the connection to rank 0, and what that brought.
fn join(it: &Rendezvous, places: &[SocketAddr], deadline: Instant) -> Result<(Link, Vec<u8>)> {
    let mut why = String::new();
    while Instant::now() < deadline {
        for place in places {
            let left = deadline.saturating_duration_since(Instant::now()).max(PAUSE);
            match TcpStream::connect_timeout(place, left) {
                Ok(stream) => match ask(it, stream, deadline)? {
                    Some(met) => return Ok(met),
                    None => why = "whoever listens there closed the connection".into(),
                },
                Err(error) => why = error.to_string(),
            }
        }
        // Rank 0 may not be there yet.
        std::thread::sleep(5 * PAUSE);
    }
    let (place, within) = (&it.address, it.timeout);
    Err(failed(it, format!("rank 0 was not found at {place} within {within:?} ({why})")))
}

/// Greets rank 0 and waits for its answer; `None` where it hangs up.
fn ask(it: &Rendezvous, stream: TcpStream, deadline: Instant) -> Result<Option<(Link, Vec<u8>)>> {
    if prepare(&stream).is_err() {
        return Ok(None);
    }
    let mut link = Link::new(0, stream);
    let mut hello = MAGIC.to_vec();
    hello.extend_from_slice(&(it.world_size as u32).to_le_bytes());
    hello.extend_from_slice(&(it.rank as u32).to_le_bytes());
    if link.stream.write_all(&hello).is_err() {
        return Ok(None);
    }
    loop {
        let closed = link.fill();
        match link.message() {
            Some((READY, brought)) => return Ok(Some((link, brought))),
            Some((FAILED, why)) => return Err(failed(it, String::from_utf8_lossy(&why))),
            Some(_) => return Ok(None),
            None if closed => return Ok(None),
            None if Instant::now() >= deadline => {
                let within = it.timeout;
                return Err(failed(it, format!("not all ranks came within {within:?}")));
            }
            None => std::thread::sleep(PAUSE),
        }
    }
}
