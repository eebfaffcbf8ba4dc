"""From the official files, or embedded stand-ins, to data sets in one format."""


localrules:
    fetch_file,


rule fetch_file:
    output:
        "<data>/{dataset}/{file}",
    log:
        "<results>/logs/fetch_file/{dataset}/{file}.log",
    retries: 2
    conda:
        "../envs/recaps.yaml"
    message:
        "Fetching {wildcards.file} of {wildcards.dataset}"
    script:
        "../workflow/scripts/fetch_file.py"


rule prepare_dataset:
    input:
        plan.raw_files,
    output:
        images="<dataset>/images.npy",
        labels="<dataset>/labels.npy",
        factors="<dataset>/factors.npz",
        record="<dataset>/record.json",
    log:
        "<logs>/prepare_dataset/{dataset}-{split}.log",
    benchmark:
        "<benchmarks>/prepare_dataset/{dataset}-{split}.tsv"
    conda:
        "../envs/recaps.yaml"
    resources:
        mem_mb=growing(4000),
        runtime=growing(30),
    params:
        code=plan.code("prepare_dataset"),
        stand_in=plan.stand_in,
        options=plan.dataset_options,
    message:
        "Preparing {wildcards.dataset}/{wildcards.split}"
    script:
        "../workflow/scripts/prepare_dataset.py"
