//! Hand-made HTTP/1.1, which may be malformed (RFC 9112).

use std::time::Duration;

use kas_testing::world::World;
use secrecy::ExposeSecret as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
    time::timeout,
};

/// Longer than a response takes, and shorter than any limit.
const PATIENCE: Duration = Duration::from_secs(5);

/// Returns the beginning of a valid request: the request line, `Host` and the credential.
pub(crate) fn head(world: &World, method: &str, path: &str) -> String {
    let bearer = world.caller_token.expose_secret();
    format!("{method} /agents/prod{path} HTTP/1.1\r\nHost: kas\r\nAuthorization: Bearer {bearer}\r\n")
}

/// Reads until the connection is closed or silent.
pub(crate) async fn read(connection: &mut DuplexStream) -> String {
    let mut all = Vec::new();
    let mut some = [0; 4096];
    while let Ok(Ok(1..)) = timeout(PATIENCE, async {
        let read = connection.read(&mut some).await?;
        all.extend_from_slice(&some[..read]);
        Ok::<_, std::io::Error>(read)
    })
    .await
    {}
    String::from_utf8_lossy(&all).into_owned()
}

/// Sends bytes on a new connection, and reads the response.
pub(crate) async fn exchange(world: &World, bytes: impl AsRef<[u8]>) -> String {
    let (mut reading, mut writing) = tokio::io::split(world.connect());
    let sent = bytes.as_ref().to_vec();
    // An attacker is refused before it has sent everything.
    let sending = tokio::spawn(async move {
        let _ = writing.write_all(&sent).await;
        writing
    });
    let mut all = Vec::new();
    let mut some = [0; 4096];
    while let Ok(Ok(read @ 1..)) = timeout(PATIENCE, reading.read(&mut some)).await {
        all.extend_from_slice(&some[..read]);
    }
    sending.abort();
    String::from_utf8_lossy(&all).into_owned()
}

/// Returns the status of the first response, or 0.
pub(crate) fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default()
}
