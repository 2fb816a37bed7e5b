//! The files for diffs, which kas reads from the repositories. Any pod can ask any replica for them.

use std::{collections::HashMap, time::Duration};

use agentk_core::services::ServiceError;
use gitops_engine::SourceFile;
use parking_lot::Mutex;
use proto::{
    Reason,
    gitops::{PreviewRequest, SourceNotice, SyncHead},
};
use tokio::{sync::oneshot, time::timeout};

use super::Gitops;

/// The time that kas may take to read a repository.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The files of a project, or the reason why kas has none.
pub(super) type Preview = Result<(SyncHead, Vec<SourceFile>), String>;

/// The diffs that wait for their files.
#[derive(Debug, Default)]
pub(super) struct Previews(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    last: u64,
    by_number: HashMap<u64, oneshot::Sender<Preview>>,
}

/// Forgets a diff that waits no longer.
struct Registration<'a> {
    previews: &'a Previews,
    number: u64,
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        self.previews.0.lock().by_number.remove(&self.number);
    }
}

impl Previews {
    /// Hands the files to the diff with a number. Returns false if it waits no longer.
    pub(super) fn answer(&self, number: u64, preview: Preview) -> bool {
        let waiting = self.0.lock().by_number.remove(&number);
        waiting.is_some_and(|waiting| waiting.send(preview).is_ok())
    }

    fn register(&self) -> (Registration<'_>, oneshot::Receiver<Preview>) {
        let (sender, receiver) = oneshot::channel();
        let mut waiting = self.0.lock();
        waiting.last += 1;
        let number = waiting.last;
        waiting.by_number.insert(number, sender);
        drop(waiting);
        (Registration { previews: self, number }, receiver)
    }
}

/// Asks kas for the files of a project. The number of the request is chosen here.
pub(super) async fn ask(
    gitops: &Gitops,
    request: PreviewRequest,
) -> Result<(SyncHead, Vec<SourceFile>), ServiceError> {
    let unavailable = |what: &str| ServiceError::new(Reason::SourceUnavailable, what);
    let (registration, receiver) = gitops.previews.register();
    let request = PreviewRequest { number: registration.number, ..request };
    if !gitops.sources.lock().ask(&SourceNotice::Preview(request)) {
        return Err(unavailable("no replica of kas sends manifests to this pod of agentk now; try again"));
    }
    match timeout(TIMEOUT, receiver).await {
        Ok(Ok(Ok(preview))) => Ok(preview),
        Ok(Ok(Err(problem))) => Err(ServiceError::new(Reason::BadRequest, problem)),
        // The tunnel was lost, or kas is too slow.
        Ok(Err(_)) | Err(_) => {
            Err(unavailable("kas has not sent the files of the project in time; try again"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn files_reach_the_diff_that_waits_for_them() {
        let previews = Previews::default();
        let (first, of_first) = previews.register();
        let (second, of_second) = previews.register();
        assert!(previews.answer(second.number, Err("no such branch".to_owned())));
        assert_eq!(of_second.await.unwrap().unwrap_err(), "no such branch");
        assert!(!previews.answer(second.number, Err(String::new())), "it was answered");
        let number = first.number;
        drop((first, of_first));
        assert!(!previews.answer(number, Err(String::new())), "its caller has gone");
        assert!(previews.0.lock().by_number.is_empty());
    }
}
