//! The list of agents in the stream of a tab.

use std::{sync::Arc, time::Duration};

use access::Grant;
use bytes::Bytes;
use futures_util::{
    FutureExt as _, Stream, StreamExt as _,
    future::{BoxFuture, pending},
    stream::{self, FuturesUnordered},
};
use tokio::time::{sleep, timeout};

use super::frame::{FrameKind, frame};
use crate::WebServer;

/// The pause between two lists, so that a fleet that restarts does not read the route store for each of its tunnels.
const PAUSE: Duration = Duration::from_secs(1);
/// The time after which the list is read without a change of a route: agents may be new in the identity file, and the number of
/// tunnels may have changed.
const REFRESH: Duration = Duration::from_secs(15);

/// Returns a frame with the list of the caller's agents, and one each time that it has changed.
pub(super) fn frames(web: Arc<WebServer>, grant: Arc<Grant>) -> impl Stream<Item = Bytes> {
    let mut last = Vec::new();
    let lists = stream::unfold(None, move |change: Option<FuturesUnordered<BoxFuture<'static, ()>>>| {
        let (web, grant) = (Arc::clone(&web), Arc::clone(&grant));
        async move {
            if let Some(mut change) = change {
                // An elapsed time is a reason to read the list, too.
                let _ = timeout(REFRESH, change.next()).await;
                drop(change);
                sleep(PAUSE).await;
            }
            // Created before the list is read, so that no change in between is missed.
            let known = web.logins.identities.load_full();
            let agents = known.agents_of(&grant.caller).into_iter();
            let changes = agents.map(|(_, agent)| web.store.changed(agent));
            // Without an agent nothing changes, while an empty set of futures would end at once.
            let change = changes.chain([pending().boxed()]).collect();
            let list = serde_json::to_vec(&web.agents(&grant).await).expect("it has keys that are text");
            Some((list, Some(change)))
        }
    });
    lists.filter_map(move |list| {
        let changed = (list != last).then(|| frame(FrameKind::Agents, 0, &list));
        last = list;
        async { changed }
    })
}
