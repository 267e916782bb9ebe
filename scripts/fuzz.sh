#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# scripts/fuzz.sh [SECONDS [TARGET...]]: builds the fuzz preset and runs each libFuzzer target for SECONDS (60), one
# after the other. The seeds are testdata/golden and, for the other targets, small files made here; what it learns
# stays in build/fuzz/corpus, findings in build/fuzz/findings.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

seconds=${1:-60}
shift || true
[[ $seconds =~ ^[0-9]+$ ]] || die "usage: scripts/fuzz.sh [SECONDS [TARGET...]]"

compiler=${CLANG:-}
for candidate in clang++ clang++-{21..14}; do
  if [[ -z $compiler ]] && command -v "$candidate" >/dev/null; then
    compiler=$candidate
  fi
done
if [[ -z $compiler ]]; then
  packages+=(clang)
  compiler=clang++
fi

install_packages
step "configure build/fuzz" cmake --preset fuzz -DCMAKE_CXX_COMPILER="$compiler"
step "build fuzz" cmake --build build/fuzz --parallel "$jobs"

targets=("$@")
if ((${#targets[@]} == 0)); then
  for source in fuzz/*_fuzz.cpp; do
    targets+=("$(basename "$source" .cpp)")
  done
fi

# safetensors_seed NAME DATA_BYTES HEADER: a valid file whose data are zeros.
safetensors_seed() {
  local length=${#3}
  {
    printf "$(printf '\\x%02x\\x%02x\\0\\0\\0\\0\\0\\0' $((length % 256)) $((length / 256)))"
    printf '%s' "$3"
    head -c "$2" /dev/zero
  } >"build/fuzz/seeds/safetensors/$1.safetensors"
}

# What golden checkpoints lack: a sparse step, the forms of an empty tensor, escapes, and a header with padding.
mkdir -p build/fuzz/seeds/safetensors
safetensors_seed empty 0 '{}'
safetensors_seed scalar 8 '{"s":{"dtype":"F64","shape":[],"data_offsets":[0,8]}}   '
safetensors_seed no_elements 0 '{"e":{"dtype":"I64","shape":[3,0],"data_offsets":[0,0]}}'
safetensors_seed escapes 2 '{"__metadata__":{"format":"pt","a\u00e9":"\"\\\ud83d\ude00"},"\u0077":{"dtype":"F8_E5M2","shape":[2],"data_offsets":[0,2]}}'
safetensors_seed sparse_step 24 '{"__metadata__":{"sparse":"True"},"w.indices":{"dtype":"I32","shape":[4],"data_offsets":[0,16]},"w.values":{"dtype":"BF16","shape":[4],"data_offsets":[16,24]}}'

# One of each kind of input; the first byte chooses.
mkdir -p build/fuzz/seeds/bootstrap build/fuzz/seeds/channel
{
  printf '\0sparsecU\1\0\0\0\xd8\x72\0\0%032d127.0.0.1' 0
  head -c 71 /dev/zero
} >build/fuzz/seeds/bootstrap/unique_id
printf '\1\2\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0aaabb' >build/fuzz/seeds/bootstrap/blobs
printf '\2\2\0\0\0\0\0\0\0\4\0\0\0\0\0\0\0abcdefghijklmnopqrst' >build/fuzz/seeds/bootstrap/unencrypted
printf '\3\7\5\r\0\0\0x\2\3abc' >build/fuzz/seeds/bootstrap/encrypted
printf '\4sparsecR\1\0\0\0\1\0\0\0\2\0\0\0\0\0\0\0%064d' 0 >build/fuzz/seeds/bootstrap/acceptor
printf '\0\0\2\0\7\0\3\0\4\0' >build/fuzz/seeds/channel/count_table
printf '\1\0\0\2\0\7\0\3\0\4' >build/fuzz/seeds/channel/opening
printf '\2\2\x2c\0\0\x2c\0\2\x2c\0\3' >build/fuzz/seeds/channel/rank_infos

# layout_seed NAME JSON: a layout file as it stands, and scaled down.
layout_seed() {
  printf '\2%s' "$2" >"build/fuzz/seeds/layout/$1"
  printf '\3%s' "$2" >"build/fuzz/seeds/layout/$1_scaled"
}
mkdir -p build/fuzz/seeds/layout
layout_seed explicit '{"format":"sparsecast-layout","version":1,"tensors":[["a","BF16",[4,2]],["b","BF16",[4,2]]],"ties":[["b","a"]],"ranks":[{"node":"n","tensors":[["l","BF16",9]],"shards":[[0,0,1,[0,0],[4,1],[2,1],false]]}]}'
layout_seed rules '{"format":"sparsecast-layout","version":1,"sizes":{"h":{"size":4,"scalable":true}},"repeats":{"layer":2,"expert":{"count":2,"scalable":1}},"tensors":[{"name":"e","shape":["h+1","h"]},{"name":"{layer}.q","shape":["2*h","h"]},{"name":"{layer}.k","shape":["h","h"]},{"name":"{layer}.v","shape":["h","h"]},{"name":"n","shape":["h"]},{"name":"{layer}.{expert}.w","dtype":"F32","shape":["h","h"],"for":{"layer":"0-1"}}],"mesh":[[["pp",2],["tp",2]]],"nodes":{"prefix":"n","ranks":2},"stages":{"axis":"pp","repeat":"layer","layers":["0","1"]},"cuts":[{"tensors":"e","rule":"vocab_parallel","axes":["tp"],"multiple":4,"where":{"pp":[0]}},{"local":"{layer}.x","tensors":["{layer}.q","{layer}.k","{layer}.v"],"rule":"qkv_proj","axes":["tp"],"query_heads":"expert*2","kv_heads":"expert"},{"local":"{layer}.w","tensors":"{layer}.{expert}.w","rule":"row_parallel","axes":["tp"],"experts":{"axes":["pp"],"transposed":true,"physical_to_logical":{"0":[1,0]}}},{"tensors":"*","rule":"fsdp2","axes":["tp"]}]}'
printf '\1\x19\0\0\0\1\0\0\0\1\0\1\2\4\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0a\0\1\0\1\1l\1\x09\1\0\0\1\1\0\4\2\0\1\1' >build/fuzz/seeds/layout/content

mkdir -p build/fuzz/seeds/sharded
printf '\0\0\0\0\0\1\0\0\0%032d%032d' 0 0 >build/fuzz/seeds/sharded/vote
printf '\1\xa2\x66format\1\x65roles\x80' >build/fuzz/seeds/sharded/rank_infos

mkdir -p build/fuzz/seeds/frame_head
printf '\x40\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\x8\0\0\0\x8\0\0\0\1\0\0\0\0\0\0\0%08d%08d\x40\0\0\0\0\0\0\0' 0 0 \
  >build/fuzz/seeds/frame_head/one_stream

mkdir -p build/fuzz/seeds/s3_answers
printf '\0<?xml version="1.0"?><a b="c"><d>&lt;&#x41;</d><e/></a>' >build/fuzz/seeds/s3_answers/xml
printf '\1<ListBucketResult><Contents><Key>k</Key><LastModified>2026-11-21T10:20:30.123Z</LastModified><Size>5</Size></Contents><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken></ListBucketResult>' >build/fuzz/seeds/s3_answers/listing
printf '\2<Error><Code>SlowDown</Code><Message>m</Message></Error>' >build/fuzz/seeds/s3_answers/error
printf '\2<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>' >build/fuzz/seeds/s3_answers/upload
printf '\2bytes 0-9/10' >build/fuzz/seeds/s3_answers/range
printf '\4{"AccessKeyId": "a", "SecretAccessKey": "b", "Token": "c", "Expiration": "2030-01-01T00:00:00+01:00"}' >build/fuzz/seeds/s3_answers/keys
printf '\4<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>a</AccessKeyId><SecretAccessKey>b</SecretAccessKey><SessionToken>c</SessionToken><Expiration>2030-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>' >build/fuzz/seeds/s3_answers/role
printf '\3[profile a]\nregion = b ; c\ns3 =\n  d = e\n' >build/fuzz/seeds/s3_answers/ini
# An index, a frame of each encoding, and a packed flush, each of the fuzzer's own table.
mkdir -p build/fuzz/seeds/interop
printf '\0{"metadata":{"version":"000002","base_version":"000001","delta_encoding":"xor","compression_format":"zstd","checksum_format":"xxh3-128"},"weight_map":{"a":"model-00000-of-00001.safetensors"}}' >build/fuzz/seeds/interop/index
printf '\061\x28\xb5\x2f\xfd\x20\x18\xc1\0\0abcdefghabcdefghabcdefgh' >build/fuzz/seeds/interop/xor
printf '\002\x28\xb5\x2f\xfd\x20\x0e\x71\0\0\2\0\0\0\3\0\0\0\5\0\0\0xy' >build/fuzz/seeds/interop/overwrite
{
  printf '\003\x36\1\0\0\0\0\0\0{"__metadata__":{"encoding":"indices","params":"[{\\"name\\":\\"a\\",\\"dtype\\":\\"bfloat16\\",\\"shape\\":[40],\\"pos_start\\":0,\\"pos_end\\":4,\\"pos_width\\":4,\\"val_start\\":0,\\"val_end\\":1}]"},"__positions__":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"__values__":{"dtype":"BF16","shape":[1],"data_offsets":[4,6]}}'
  printf '\7\0\0\0\x12\x34'
} >build/fuzz/seeds/interop/packed

# Records as they are stored; the first byte chooses the parser.
mkdir -p build/fuzz/seeds/log_records
kinds=(commit catalog anchor floor lease)
for record in testdata/log/*.record; do
  for kind in "${!kinds[@]}"; do
    if [[ ${record##*/} == "${kinds[kind]}"* ]]; then
      { printf "\\x0$kind"; cat "$record"; } >"build/fuzz/seeds/log_records/${record##*/}"
    fi
  done
done

# seeds_of TARGET: directories of the inputs that it starts from.
seeds_of() {
  case $1 in
    safetensors_fuzz) printf '%s\n' build/fuzz/seeds/safetensors testdata/golden/states ;;
    bootstrap_fuzz) printf '%s\n' build/fuzz/seeds/bootstrap ;;
    channel_fuzz) printf '%s\n' build/fuzz/seeds/channel ;;
    sharded_fuzz) printf '%s\n' build/fuzz/seeds/sharded ;;
    frame_head_fuzz) printf '%s\n' build/fuzz/seeds/frame_head ;;
    s3_answers_fuzz) printf '%s\n' build/fuzz/seeds/s3_answers ;;
    interop_fuzz) printf '%s\n' build/fuzz/seeds/interop ;;
    log_records_fuzz) printf '%s\n' build/fuzz/seeds/log_records ;;
    layout_fuzz) printf '%s\n' build/fuzz/seeds/layout ;;
    *) printf '%s\n' testdata/golden/good testdata/golden/bad ;;
  esac
}

findings=$repository/build/fuzz/findings
mkdir -p "$findings"
for target in "${targets[@]}"; do
  corpus=build/fuzz/corpus/$target
  mkdir -p "$corpus"
  mapfile -t seeds < <(seeds_of "$target")
  description="run $target for $seconds s"
  step "$description" "build/fuzz/bin/$target" -max_total_time="$seconds" -rss_limit_mb=4096 -timeout=30 \
    -print_final_stats=1 -artifact_prefix="$findings/$target-" "$corpus" "${seeds[@]}"
  grep -h 'stat::number_of_executed_units' "$(log_of "$description")"
done
