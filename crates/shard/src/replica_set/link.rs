//! The task behind a link to another member: it dials, sends what waits, and notices when the other is gone.
//!
//! A link that the other side closes is dialled again at once. If nobody listens there, the other's process
//! has ended, and the log is told: a primary that was killed is missed within moments, not after an
//! election timeout. A host that is silent, a network that is cut, a proxy in between say nothing of that
//! kind: then the timeout decides.
//!
//! What the dead have sent may be heard after their end was noticed, and makes the log believe in them once
//! more. Its answer to that finds nobody either, and says so again.

use super::transport::{Absence, Directory, ask, replicate_commands};
use replication::MemberId;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to leave a member alone that could not be reached.
const REST: Duration = Duration::from_millis(100);
/// A process that ends closes its connections and its listener one after the other: how often and how soon
/// it is dialled in between.
const DIALS_MAX: usize = 5;
const DIAL_INTERVAL: Duration = Duration::from_millis(20);

/// It ends with its queue.
pub(super) struct Link {
    to: MemberId,
    directory: Arc<Directory>,
    queued_bytes: Arc<AtomicUsize>,
    stream: Option<TcpStream>,
    /// The other's process had ended when it was dialled last.
    is_gone: bool,
}

impl Link {
    pub(super) fn new(
        to: MemberId,
        directory: Arc<Directory>,
        queued_bytes: Arc<AtomicUsize>,
    ) -> Self {
        Self {
            to,
            directory,
            queued_bytes,
            stream: None,
            is_gone: false,
        }
    }

    pub(super) async fn run(mut self, mut packets: mpsc::Receiver<Vec<u8>>) {
        let mut waiting = Vec::new();
        loop {
            let taken = tokio::select! {
                taken = packets.recv_many(&mut waiting, 256) => taken,
                () = closed(self.stream.as_ref()) => {
                    self.dial_again().await;
                    continue;
                }
            };
            if taken == 0 {
                break;
            }
            let bytes = waiting.iter().map(Vec::len).sum();
            self.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            let sent = self.send(&waiting).await;
            waiting.clear();
            if let Err(error) = sent {
                tracing::debug!(member = %self.to, %error, "a member is not reached");
                self.stream = None;
                self.is_gone &= error.kind() == io::ErrorKind::ConnectionRefused;
                let absence = match self.is_gone {
                    true => Absence::Gone,
                    false => Absence::Unreachable,
                };
                self.directory.report(self.to, absence);
                tokio::time::sleep(REST).await;
                // What waited meanwhile is old news.
                while let Ok(packet) = packets.try_recv() {
                    self.queued_bytes.fetch_sub(packet.len(), Ordering::Relaxed);
                }
            }
        }
    }

    /// The other side has closed the connection: looks whether it is there at all.
    async fn dial_again(&mut self) {
        self.stream = None;
        for _ in 0..DIALS_MAX {
            match self.dial().await.map_err(|error| error.kind()) {
                Ok(stream) => {
                    self.stream = Some(stream);
                    return;
                }
                Err(io::ErrorKind::ConnectionRefused) => {
                    self.is_gone = true;
                    self.directory.report(self.to, Absence::Gone);
                    return;
                }
                // It may be about to end.
                Err(
                    io::ErrorKind::ConnectionReset
                    | io::ErrorKind::UnexpectedEof
                    | io::ErrorKind::BrokenPipe,
                ) => tokio::time::sleep(DIAL_INTERVAL).await,
                Err(_) => return,
            }
        }
    }

    async fn send(&mut self, packets: &[Vec<u8>]) -> io::Result<()> {
        let mut connected = match self.stream.take() {
            Some(connected) => connected,
            None => self.dial().await?,
        };
        for message in replicate_commands(packets) {
            tokio::time::timeout(WRITE_TIMEOUT, connected.write_all(&message)).await??;
        }
        self.is_gone = false;
        self.stream = Some(connected);
        Ok(())
    }

    async fn dial(&self) -> io::Result<TcpStream> {
        tokio::time::timeout(CONNECT_TIMEOUT, self.connect()).await?
    }

    async fn connect(&self) -> io::Result<TcpStream> {
        let Some(host) = self.directory.address_of(self.to) else {
            return Err(io::Error::other("its address is not known"));
        };
        let introduction = match &*self.directory.introduce.read() {
            Some(introduce) => introduce(self.to),
            None => None,
        };
        let introduction = introduction.ok_or_else(|| io::Error::other("nobody to introduce"))?;
        let mut stream = TcpStream::connect(&host).await?;
        stream.set_nodelay(true)?;
        let reply = ask(&mut stream, &introduction.to_command()).await?;
        match reply.get("ok").and_then(model::number::Number::of) {
            Some(ok) if ok.to_f64() == 1.0 => Ok(stream),
            _ => {
                let text = reply.as_doc().get_str("errmsg").unwrap_or("refused");
                Err(io::Error::other(format!("{host}: {text}")))
            }
        }
    }
}

/// Waits until the other side closes a connection, on which it says nothing otherwise. Without one, for ever.
async fn closed(stream: Option<&TcpStream>) {
    let Some(stream) = stream else {
        return std::future::pending().await;
    };
    let mut heard = [0; 64];
    while stream.readable().await.is_ok() {
        match stream.try_read(&mut heard) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::transport::{Introduction, MemberNumber, Peers, message};
    use super::*;
    use model::bson::DocWriter;
    use replication::Transport;
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;
    use wire::protocol::{HEADER_SIZE, Header};

    /// Takes a call as a member does.
    async fn accept(listener: &TcpListener) -> TcpStream {
        let (mut stream, _) = listener.accept().await.expect("a call");
        let mut header = [0; HEADER_SIZE];
        stream.read_exact(&mut header).await.expect("a header");
        let length = usize::try_from(Header::parse(&header).length).expect("a length");
        let mut rest = vec![0; length - HEADER_SIZE];
        stream.read_exact(&mut rest).await.expect("a command");
        let reply = message(0, &DocWriter::new().with("ok", 1.0).finish());
        stream.write_all(&reply).await.expect("a reply");
        stream
    }

    /// A member that is elsewhere now: nothing more goes to where it was.
    #[tokio::test]
    async fn a_link_follows_its_member_to_another_host() {
        let (old, new) = (
            TcpListener::bind("127.0.0.1:0").await.expect("a port"),
            TcpListener::bind("127.0.0.1:0").await.expect("a port"),
        );
        let address = |listener: &TcpListener| listener.local_addr().expect("one").to_string();
        let other = MemberId::new(2);
        let peers = Peers::new();
        peers.set_host(other, &address(&old));
        let introduction = introduction();
        peers.introduce_with(
            Box::new(move |_| Some(introduction.clone())),
            Box::new(|_, _| {}),
        );
        peers.send(other, vec![7]);
        let mut first = accept(&old).await;
        peers.set_host(other, &address(&new));
        peers.send(other, vec![8]);
        accept(&new).await;
        // The old one hears what was sent to it, and then the end.
        let mut heard = Vec::new();
        let ended = first.read_to_end(&mut heard);
        let ended = tokio::time::timeout(Duration::from_secs(60), ended).await;
        ended.expect("the link ends").expect("in order");
    }

    fn introduction() -> Introduction {
        Introduction {
            set: "flock".to_owned(),
            replica_set_id: None,
            to: MemberNumber::first(1),
            from: MemberNumber::first(0),
            host: "tern:27017".to_owned(),
            newcomer: false,
        }
    }

    /// ⚑ A closed connection alone says nothing; that nobody listens any more does.
    #[tokio::test]
    async fn a_process_that_has_ended_is_told_from_a_connection_that_was_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let other = MemberId::new(2);
        let peers = Peers::new();
        peers.set_host(other, &address.to_string());
        let (reports, mut reported) = mpsc::unbounded_channel();
        let introduction = introduction();
        peers.introduce_with(
            Box::new(move |_| Some(introduction.clone())),
            Box::new(move |member, absence| {
                let _ = reports.send((member, absence));
            }),
        );
        let mut next = async || {
            let report = tokio::time::timeout(Duration::from_secs(60), reported.recv());
            report.await.expect("a report comes soon")
        };
        peers.send(other, vec![7]);
        drop(accept(&listener).await);
        // It is dialled again, and is there.
        let again = accept(&listener).await;
        drop(listener);
        drop(again);
        assert_eq!(next().await, Some((other, Absence::Gone)));
        // It has said something before it ended, and the log answers that.
        peers.send(other, vec![7]);
        assert_eq!(next().await, Some((other, Absence::Gone)));
    }
}
