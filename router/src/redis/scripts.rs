//! The scripts that run in Redis. Each begins with what it does, what it is given and what it answers.

use redis::Script;

macro_rules! scripts {
    ($($name:ident)*) => {
        /// Each is sent once to a server, and is named by its digest then.
        #[derive(Debug)]
        pub(super) struct Scripts {
            $(pub(super) $name: Script,)*
        }

        impl Scripts {
            pub(super) fn new() -> Self {
                Self { $($name: Script::new(include_str!(concat!("lua/", stringify!($name), ".lua"))),)* }
            }
        }
    };
}

scripts! { admit beat bury change fill holdings join leave lookup members }
