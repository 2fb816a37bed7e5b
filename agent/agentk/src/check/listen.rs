//! The steps for an agentk to which kas connects.

use agentk_core::{
    ListenConfig,
    check_report::{CheckReport, StepError, failed},
};

use super::CheckCommand;

impl CheckCommand {
    /// Checks the certificates, the key and the address. kas itself is not checked: it connects to a running agentk.
    pub(super) async fn check_listener(
        &self,
        config: &ListenConfig,
        report: &mut CheckReport<'_>,
    ) -> Result<(), StepError> {
        let ListenConfig { address, tls, key, public_key } = config;
        report.ok(
            "TLS",
            match tls {
                Some(tls) if tls.authenticates_clients() => {
                    "the certificate matches its key; kas needs a certificate of the authority"
                }
                Some(_) => "the certificate matches its key",
                None => "not used, which is allowed on this machine only",
            },
        );
        let with_key = key.is_some() || public_key.is_some();
        report.ok("key", if with_key { "the file can be used" } else { "not used" });
        let hint = "another process listens there, which may be the running agentk, or this machine does not have the address";
        let socket = process::listen(*address).map_err(failed("address", hint))?;
        drop(socket);
        report.ok("address", format!("{address} is free"));
        let token = self.token.authorization().await;
        token.map_err(failed("token", "create a token with `kas token new agent`"))?;
        report.ok("token", format!("{} can be used", self.token));
        Ok(())
    }
}
