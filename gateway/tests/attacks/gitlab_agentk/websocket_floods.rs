//! Frames of WebSocket without effect from strangers: GitLab's agentk sends its token later, inside of the WebSocket.

use super::*;

/// More than the limit of a connection, and less than that of a tunnel, whose end has sent a token.
const BEFORE_THE_CUT: usize = 2 << 20;

#[tokio::test(start_paused = true)]
async fn attack_82_flood_in_the_websocket_of_a_stranger_ends_it() {
    let world = World::new();
    // Masked with zeros (RFC 6455 section 5.3).
    for (name, first, one) in [
        ("ping", &b""[..], &b"\x89\x88\0\0\0\0abcdefgh"[..]),
        ("pong", b"", b"\x8a\x80\0\0\0\0"),
        ("empty message", b"", b"\x82\x80\0\0\0\0"),
        ("empty fragment", b"\x02\x80\0\0\0\0", b"\0\x80\0\0\0\0"),
    ] {
        let mut io = dial(&world);
        client::shake_hands(&mut io, "ws-tunnel").await;
        let (mut reading, mut attacker) = tokio::io::split(io);
        tokio::spawn(async move { tokio::io::copy(&mut reading, &mut tokio::io::sink()).await });
        attacker.write_all(first).await.unwrap();
        let (part, mut sent) = (one.repeat(1000), 0);
        while attacker.write_all(&part).await.is_ok() {
            sent += part.len();
            assert!(sent < BEFORE_THE_CUT, "{name}");
        }
        assert!(sent > 0, "{name}");
    }
}
