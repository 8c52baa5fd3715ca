set -x
if [ "$#" -lt 2 ]; then
    echo "Usage: sft.sh <nproc_per_node> <save_path> [other_configs...]"
    exit 1
fi
nproc_per_node=$1
save_path=$2
shift 2
torchrun --standalone --nnodes=1 --nproc_per_node=$nproc_per_node \
     -m verl.trainer.fsdp_sft_trainer \
    data.train_files=$HOME/data/gsm8k/train.parquet \
    data.val_files=$HOME/data/gsm8k/test.parquet \
    data.prompt_key=extra_info \
    data.response_key=extra_info \
    optim.lr=1e-4 \
    optim.clip_grad=0.5 \
    data.micro_batch_size_per_gpu=4 \
    data.use_dynamic_bsz=False \
    model.partial_pretrain=Qwen/Qwen2.5-0.5B-Instruct \
    trainer.default_local_dir=$save_path \
    trainer.project_name=gsm8k-sft \
    trainer.experiment_name=gsm8k-sft-qwen \
    trainer.total_epochs=2 $@ \
    ulysses_sequence_parallel_size=2 \
    use_remove_padding=true
