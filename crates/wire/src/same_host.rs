//! Connections within one machine, which nobody needs to be careful on.
//!
//! A system whose rule for sending is BBR spreads what is sent over time, by timers and by a rate that it has
//! measured, and sends little now and then to measure anew. On a way that other traffic shares this is what it is
//! chosen for. Between two processes of one machine there is nothing to measure, and a reply of a megabyte is held
//! up: a scan through a router had 82% to 85% of the rate of the shards read directly, where it has 97% without, and
//! took a fifteenth more CPU ([decision 31](../../../docs/decisions/0031-nobody-is-paced-within-a-machine.md)).
//!
//! Left out: peers elsewhere, where the system's choice holds.

use std::net::IpAddr;

use tokio::net::TcpStream;

/// The one rule that every Linux has and lets everybody choose, and that sends what it may at once.
#[cfg(target_os = "linux")]
const UNPACED: &[u8] = b"reno";

/// Has what goes to a peer on this machine sent at once. A connection that stays as it was serves as well.
pub(crate) fn send_at_once(stream: &TcpStream) {
    if let (Ok(own), Ok(peer)) = (stream.local_addr(), stream.peer_addr())
        && is_same_host(own.ip(), peer.ip())
    {
        #[cfg(target_os = "linux")]
        let _ = socket2::SockRef::from(stream).set_tcp_congestion(UNPACED);
    }
}

/// Whoever has the address that it is reached by is reached within the machine, whichever address that is.
fn is_same_host(own: IpAddr, peer: IpAddr) -> bool {
    let (own, peer) = (own.to_canonical(), peer.to_canonical());
    own == peer || (own.is_loopback() && peer.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_of_the_same_machine() {
        let table = [
            ("127.0.0.1", "127.0.0.1", true),
            ("127.0.0.1", "127.0.0.2", true),
            ("::ffff:127.0.0.1", "127.0.0.1", true),
            ("::1", "::1", true),
            ("10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "10.0.0.2", false),
            ("fe80::1", "fe80::2", false),
            // It is forwarded from elsewhere.
            ("127.0.0.1", "10.0.0.2", false),
        ];
        for (own, peer, expected) in table {
            let parsed = |address: &str| address.parse().expect("an address");
            assert_eq!(
                is_same_host(parsed(own), parsed(peer)),
                expected,
                "{own} {peer}"
            );
        }
    }

    /// Whatever the system's own choice is; where that is the same one, this shows nothing.
    #[tokio::test]
    #[cfg(target_os = "linux")]
    async fn a_connection_within_the_machine_sends_at_once() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a port");
        let address = listener.local_addr().expect("its address");
        let stream = TcpStream::connect(address).await.expect("a connection");
        send_at_once(&stream);
        let chosen = socket2::SockRef::from(&stream).tcp_congestion();
        let chosen = chosen.expect("it is told");
        assert!(chosen.starts_with(UNPACED), "{chosen:?}");
    }
}
