"""Every source of records, one file each; definitions name them by their key here."""

from __future__ import annotations

from clefq.data.sources import (
    access_log,
    anli,
    arc_challenge,
    banking77,
    bfcl,
    boolq,
    captioned_images,
    clinc150,
    contractnli,
    cruxeval,
    documents,
    emobank,
    finentity,
    flickr30k,
    game_agent,
    hellaswag,
    labelled_images,
    ledgar,
    longbench_v2,
    mmlu,
    musr,
    nano,
    phishnchips,
    records,
    user,
    winogrande,
)
from clefq.data.sources.base import Example, HubRef, Source

SOURCES: dict[str, Source] = {
    "access_log": access_log.SOURCE,
    "anli": anli.SOURCE,
    "arc_challenge": arc_challenge.SOURCE,
    "banking77": banking77.SOURCE,
    "bfcl": bfcl.SOURCE,
    "boolq": boolq.SOURCE,
    "captioned_images": captioned_images.SOURCE,
    "clinc150": clinc150.SOURCE,
    "contractnli": contractnli.SOURCE,
    "cruxeval": cruxeval.SOURCE,
    "documents": documents.SOURCE,
    "emobank": emobank.SOURCE,
    "finentity": finentity.SOURCE,
    "flickr30k": flickr30k.SOURCE,
    "game_agent": game_agent.SOURCE,
    "hellaswag": hellaswag.SOURCE,
    "labelled_images": labelled_images.SOURCE,
    "ledgar": ledgar.SOURCE,
    "longbench_v2": longbench_v2.SOURCE,
    "mmlu": mmlu.SOURCE,
    "musr": musr.SOURCE,
    "nano": nano.SOURCE,
    "phishnchips": phishnchips.SOURCE,
    "records": records.SOURCE,
    "user": user.SOURCE,
    "winogrande": winogrande.SOURCE,
}

__all__ = ["SOURCES", "Example", "HubRef", "Source"]
