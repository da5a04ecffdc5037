"""Words that are one token each in the vocabularies of current models: prompts and made tokenizers share them."""

from __future__ import annotations

_LIST = (
    "able also area army away baby back ball band bank base bear beat best bill bird blue boat body book born both "
    "call card care case cell city club cold come cook cost dark data date dead deal deep desk down draw drop drug "
    "each east easy edge else even ever face fact fail fall farm fast fear feel film find fine fire fish five food "
    "foot form four free from full fund game girl give goal good grow hair half hand hang hard have head hear heat "
    "help here high hold home hope hour huge idea into item join jump just keep kind know land last late lead left"
)
WORDS = tuple(_LIST.split())
