//! The order of messages in the streams. No I/O.
//!
//! ```text
//!   agentk → kas    Descriptor ─► Header ─► Message* ─► Trailer ─► [Error] ─► end
//!                        └────────────────────────────────────────► Error
//!   kas → agentk    [RequestInfo ─► Message* ─► [CloseSend]] ─► end
//!   HTTP message    Header ─► Data* ─► Trailer ─► UpgradeData* ─► end
//! ```

use crate::messages::{AgentStep, KasStep, RequestPart, ResponsePart};

/// A message that is not allowed after the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{next} is not allowed after {last}")]
pub struct OrderError {
    last: &'static str,
    next: &'static str,
}

/// The order of messages in one direction of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    last: &'static str,
    rules: &'static [Rule],
}

/// The messages that are allowed after a message.
type Rule = (&'static str, &'static [&'static str]);

/// The name of the state before the first message.
const START: &str = "the start";
/// The end of the direction.
const END: &str = "the end";
/// A message without any of its variants.
const EMPTY: &str = "an empty message";

const AGENT: &[Rule] = &[
    (START, &["Descriptor"]),
    ("Descriptor", &["Header", "Error", END]),
    ("Header", &["Message", "Trailer"]),
    ("Message", &["Message", "Trailer"]),
    ("Trailer", &["Error", END]),
    ("Error", &[END]),
];

const KAS: &[Rule] = &[
    (START, &["RequestInfo", END]),
    ("RequestInfo", &["Message", "CloseSend", END]),
    ("Message", &["Message", "CloseSend", END]),
    ("CloseSend", &[END]),
];

const HTTP: &[Rule] = &[
    (START, &["Header"]),
    ("Header", &["Data", "Trailer"]),
    ("Data", &["Data", "Trailer"]),
    ("Trailer", &["UpgradeData", END]),
    ("UpgradeData", &["UpgradeData", END]),
];

impl Order {
    /// Returns the order of the steps of agentk in a `Connect` stream.
    pub const fn of_agent() -> Self {
        Self { last: START, rules: AGENT }
    }

    /// Returns the order of the steps of kas in a `Connect` stream.
    pub const fn of_kas() -> Self {
        Self { last: START, rules: KAS }
    }

    /// Returns the order of the parts of an HTTP message.
    pub const fn of_http() -> Self {
        Self { last: START, rules: HTTP }
    }

    /// Accepts the next message of agentk.
    ///
    /// # Errors
    ///
    /// If it is not allowed after the last one, or is empty.
    pub fn agent_step(&mut self, step: Option<&AgentStep>) -> Result<(), OrderError> {
        self.accept(match step {
            Some(AgentStep::Descriptor(_)) => "Descriptor",
            Some(AgentStep::Header(_)) => "Header",
            Some(AgentStep::Message(_)) => "Message",
            Some(AgentStep::Trailer(_)) => "Trailer",
            Some(AgentStep::Error(_)) => "Error",
            None => EMPTY,
        })
    }

    /// Accepts the next message of kas, like [`Self::agent_step`].
    pub fn kas_step(&mut self, step: Option<&KasStep>) -> Result<(), OrderError> {
        self.accept(match step {
            Some(KasStep::RequestInfo(_)) => "RequestInfo",
            Some(KasStep::Message(_)) => "Message",
            Some(KasStep::CloseSend(_)) => "CloseSend",
            None => EMPTY,
        })
    }

    /// Accepts the next part of a request, like [`Self::agent_step`].
    pub fn request_part(&mut self, part: Option<&RequestPart>) -> Result<(), OrderError> {
        self.accept(match part {
            Some(RequestPart::Header(_)) => "Header",
            Some(RequestPart::Data(_)) => "Data",
            Some(RequestPart::Trailer(_)) => "Trailer",
            Some(RequestPart::UpgradeData(_)) => "UpgradeData",
            None => EMPTY,
        })
    }

    /// Accepts the next part of a response, like [`Self::agent_step`].
    pub fn response_part(&mut self, part: Option<&ResponsePart>) -> Result<(), OrderError> {
        self.accept(match part {
            Some(ResponsePart::Header(_)) => "Header",
            Some(ResponsePart::Data(_)) => "Data",
            Some(ResponsePart::Trailer(_)) => "Trailer",
            Some(ResponsePart::UpgradeData(_)) => "UpgradeData",
            None => EMPTY,
        })
    }

    /// Accepts the end of the direction, like [`Self::agent_step`].
    pub fn end(&mut self) -> Result<(), OrderError> {
        self.accept(END)
    }

    fn accept(&mut self, next: &'static str) -> Result<(), OrderError> {
        let allowed =
            self.rules.iter().find(|(last, _)| *last == self.last).map_or(&[][..], |(_, next)| *next);
        if !allowed.contains(&next) {
            return Err(OrderError { last: self.last, next });
        }
        self.last = next;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every sequence of up to `length` messages that an order accepts, as text.
    fn accepted(order: Order, names: &[&'static str], length: usize) -> Vec<String> {
        let mut found = Vec::new();
        let mut open = vec![(order, String::new())];
        for _ in 0..length {
            let mut next = Vec::new();
            for (order, text) in open {
                for name in names {
                    let mut order = order;
                    if order.accept(name).is_ok() {
                        let text = format!("{text} {}", if *name == END { "end" } else { name });
                        if *name == END { found.push(text) } else { next.push((order, text)) }
                    }
                }
            }
            open = next;
        }
        found
    }

    #[test]
    fn agent_may_send_these_sequences_only() {
        let names = ["Descriptor", "Header", "Message", "Trailer", "Error", END];
        assert_eq!(
            accepted(Order::of_agent(), &names, 6),
            [
                " Descriptor end",
                " Descriptor Error end",
                " Descriptor Header Trailer end",
                " Descriptor Header Message Trailer end",
                " Descriptor Header Trailer Error end",
                " Descriptor Header Message Message Trailer end",
                " Descriptor Header Message Trailer Error end",
            ]
        );
    }

    #[test]
    fn kas_may_send_these_sequences_only() {
        let names = ["RequestInfo", "Message", "CloseSend", END];
        assert_eq!(
            accepted(Order::of_kas(), &names, 4),
            [
                " end",
                " RequestInfo end",
                " RequestInfo Message end",
                " RequestInfo CloseSend end",
                " RequestInfo Message Message end",
                " RequestInfo Message CloseSend end",
            ]
        );
    }

    #[test]
    fn http_messages_have_these_sequences_only() {
        let names = ["Header", "Data", "Trailer", "UpgradeData", END];
        assert_eq!(
            accepted(Order::of_http(), &names, 5),
            [
                " Header Trailer end",
                " Header Data Trailer end",
                " Header Trailer UpgradeData end",
                " Header Data Data Trailer end",
                " Header Data Trailer UpgradeData end",
                " Header Trailer UpgradeData UpgradeData end",
            ]
        );
    }

    #[test]
    fn violation_names_both_messages() {
        let mut order = Order::of_agent();
        assert_eq!(
            order.agent_step(None).unwrap_err().to_string(),
            "an empty message is not allowed after the start"
        );
        let step = AgentStep::Message(crate::messages::Payload::default());
        assert_eq!(
            order.agent_step(Some(&step)).unwrap_err().to_string(),
            "Message is not allowed after the start"
        );
    }
}
