//! SIGHUP requests that a program reads its files again.

use std::{io, time::Duration};

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    time::sleep,
};

/// The time between two requests.
const PAUSE: Duration = Duration::from_secs(1);

/// Handles SIGHUP, which would end the process otherwise. Each one changes `requests`. The future never completes.
///
/// # Errors
///
/// If the system refuses the handler.
pub fn reload_on_sighup(requests: watch::Sender<()>) -> io::Result<impl Future<Output = ()> + Send> {
    let mut hangups = signal(SignalKind::hangup())?;
    Ok(async move {
        while hangups.recv().await.is_some() {
            tracing::info!("SIGHUP: files are read again");
            requests.send_replace(());
            // Further signals of this second count as one.
            sleep(PAUSE).await;
        }
    })
}

#[cfg(test)]
mod tests {
    use rustix::process::{Signal, getpid, kill_process};
    use tokio_util::task::AbortOnDropHandle;

    use super::*;

    #[tokio::test]
    async fn each_sighup_is_a_request() {
        let requests = watch::Sender::new(());
        let mut seen = requests.subscribe();
        let _task = AbortOnDropHandle::new(tokio::spawn(reload_on_sighup(requests).unwrap()));
        for _ in 0..2 {
            kill_process(getpid(), Signal::HUP).unwrap();
            seen.changed().await.unwrap();
        }
    }
}
