//! Headers of all formats as one type.

use super::{Packet, locate};
use crate::codec::{Cursor, Fields, Format, Repr, ReqOptions, sealed};
use crate::error::{EmitError, ParseError, Reason};
use crate::formats::*;
use crate::ids::Connid;
use crate::packet_type::{PacketType, by_format, packet_types};

macro_rules! headers {
    (
        formats {$( $(#[$format_doc:meta])* $format:ident: $($variant:ident)*; )*}
        tables {$( $table:ident: $($table_variant:ident)*; )*}
        none {$( $none_reason:ident: $($none_variant:ident)*; )*}
    ) => {
        /// The header of a packet, by format. Types that differ only in their
        /// [`TypeTraits`](crate::TypeTraits) share a variant.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Header {
            $($(#[$format_doc])* $format($format),)*
        }

        impl Header {
            /// Parses a packet of any type.
            #[inline(never)]
            pub(super) fn parse(packet: &[u8], mut cursor: Cursor<'_>) -> Result<Packet, ParseError> {
                match cursor.packet_type() {
                    // An arm for each format, so that a header is written where it is to stay.
                    $($(PacketType::$variant)|* => {
                        match $format::parse_header(&mut cursor) {
                            Ok(format) => Ok(Packet::behind(&cursor, Header::$format(format))),
                            Err(error) => Err(locate(error, packet)),
                        }
                    })*
                    $($(unsent @ PacketType::$table_variant)|* => {
                        let reason = Reason::UnsentType { code: unsent.code() };
                        Err(cursor.error("type", 0, reason))
                    })*
                    $($(unsent @ PacketType::$none_variant)|* => {
                        let reason = Reason::$none_reason { code: unsent.code() };
                        Err(cursor.error("type", 0, reason))
                    })*
                }
            }

            /// The optional headers, if it is a request.
            #[inline(always)]
            pub fn req_options(&self) -> Option<&ReqOptions> {
                match self {
                    $(Header::$format(format) => format.req_options(),)*
                }
            }

            /// The sender's connection id, wherever this format has it
            /// ([`ReqOptions::sender_connid`] in requests).
            #[inline(always)]
            pub fn connid(&self) -> Option<Connid> {
                match self {
                    $(Header::$format(format) => format.connid(),)*
                }
            }
        }

        $(
            impl From<$format> for Header {
                #[inline]
                fn from(format: $format) -> Self {
                    Header::$format(format)
                }
            }

            /// A header of another format is returned.
            impl TryFrom<Header> for $format {
                type Error = Header;

                fn try_from(header: Header) -> Result<Self, Header> {
                    match header {
                        Header::$format(format) => Ok(format),
                        other => Err(other),
                    }
                }
            }
        )*

        impl Repr for Header {
            fn packet_type(&self) -> PacketType {
                match self {
                    $(Header::$format(format) => format.packet_type(),)*
                }
            }

            fn wire_flags(&self) -> u16 {
                match self {
                    $(Header::$format(format) => format.wire_flags(),)*
                }
            }

            fn header_len(&self) -> usize {
                match self {
                    $(Header::$format(format) => format.header_len(),)*
                }
            }

            fn emit(&self, buffer: &mut [u8]) -> Result<usize, EmitError> {
                match self {
                    $(Header::$format(format) => format.emit(buffer),)*
                }
            }
        }

        impl sealed::Sealed for Header {}
    };
}

packet_types!(by_format headers);
