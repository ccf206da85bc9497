; Queues the launches of a run. `native.py` lays out what it reads, and says what a record is.
;
; A program is 64-bit words: where the call's addresses of tensors lie, the addresses of the driver's three
; functions, then records of eleven words, the first of which says what to do.

define i64 @queue(ptr %program, i64 %stream) {
entry:
  %launching = getelementptr i64, ptr %program, i64 1
  %encoding = getelementptr i64, ptr %program, i64 2
  %copying = getelementptr i64, ptr %program, i64 3
  %first = getelementptr i64, ptr %program, i64 4
  %tensors = load ptr, ptr %program
  %cuLaunchKernelEx = load ptr, ptr %launching
  %cuTensorMapEncodeTiled = load ptr, ptr %encoding
  %cuMemcpyDtoDAsync = load ptr, ptr %copying
  br label %next

next:
  %record = phi ptr [ %first, %entry ], [ %following, %write ], [ %following, %called ]
  %following = getelementptr i64, ptr %record, i64 11
  %at1 = getelementptr i64, ptr %record, i64 1
  %at2 = getelementptr i64, ptr %record, i64 2
  %at3 = getelementptr i64, ptr %record, i64 3
  %kind = load i64, ptr %record
  %one = load i64, ptr %at1
  %two = load i64, ptr %at2
  %three = load i64, ptr %at3
  switch i64 %kind, label %done [
    i64 0, label %write
    i64 1, label %encode
    i64 2, label %launch
    i64 3, label %copy
    i64 4, label %call
  ]

write: ; to an address, the address of a tensor and an offset
  %to = inttoptr i64 %one to ptr
  %tensor_at = getelementptr i64, ptr %tensors, i64 %two
  %tensor = load i64, ptr %tensor_at
  %address = add i64 %tensor, %three
  store i64 %address, ptr %to
  br label %next

encode: ; a tensor map: to, dtype, rank, where its address lies, sizes, pitches, box, steps, swizzle, promotion
  %at4 = getelementptr i64, ptr %record, i64 4
  %at5 = getelementptr i64, ptr %record, i64 5
  %at6 = getelementptr i64, ptr %record, i64 6
  %at7 = getelementptr i64, ptr %record, i64 7
  %at8 = getelementptr i64, ptr %record, i64 8
  %at9 = getelementptr i64, ptr %record, i64 9
  %at10 = getelementptr i64, ptr %record, i64 10
  %mapped_at = load ptr, ptr %at4
  %mapped = load i64, ptr %mapped_at
  %sizes = load i64, ptr %at5
  %pitches = load i64, ptr %at6
  %box = load i64, ptr %at7
  %steps = load i64, ptr %at8
  %swizzle = load i32, ptr %at9
  %promotion = load i32, ptr %at10
  %dtype = trunc i64 %two to i32
  %rank = trunc i64 %three to i32
  %encoded = call i32 %cuTensorMapEncodeTiled(i64 %one, i32 %dtype, i32 %rank, i64 %mapped, i64 %sizes,
      i64 %pitches, i64 %box, i64 %steps, i32 0, i32 %swizzle, i32 %promotion, i32 0)
  br label %called

launch: ; a configuration, into which the stream is written first, function, arguments
  %config = inttoptr i64 %one to ptr
  %stream_at = getelementptr i8, ptr %config, i64 32
  store i64 %stream, ptr %stream_at
  %launched = call i32 %cuLaunchKernelEx(i64 %one, i64 %two, i64 %three, i64 0)
  br label %called

copy: ; to, where the address of the source lies, bytes
  %source_at = inttoptr i64 %two to ptr
  %source = load i64, ptr %source_at
  %copied = call i32 %cuMemcpyDtoDAsync(i64 %one, i64 %source, i64 %three, i64 %stream)
  br label %called

call: ; of a library: function, fifteen arguments, before the stream
  %function = inttoptr i64 %one to ptr
  %given = inttoptr i64 %two to ptr
  %words = load [15 x i64], ptr %given
  %word0 = extractvalue [15 x i64] %words, 0
  %word1 = extractvalue [15 x i64] %words, 1
  %word2 = extractvalue [15 x i64] %words, 2
  %word3 = extractvalue [15 x i64] %words, 3
  %word4 = extractvalue [15 x i64] %words, 4
  %word5 = extractvalue [15 x i64] %words, 5
  %word6 = extractvalue [15 x i64] %words, 6
  %word7 = extractvalue [15 x i64] %words, 7
  %word8 = extractvalue [15 x i64] %words, 8
  %word9 = extractvalue [15 x i64] %words, 9
  %word10 = extractvalue [15 x i64] %words, 10
  %word11 = extractvalue [15 x i64] %words, 11
  %word12 = extractvalue [15 x i64] %words, 12
  %word13 = extractvalue [15 x i64] %words, 13
  %word14 = extractvalue [15 x i64] %words, 14
  %answered = call i32 %function(i64 %word0, i64 %word1, i64 %word2, i64 %word3, i64 %word4, i64 %word5, i64 %word6,
      i64 %word7, i64 %word8, i64 %word9, i64 %word10, i64 %word11, i64 %word12, i64 %word13,
      i64 %word14, i64 %stream)
  br label %called

called:
  %status = phi i32 [ %encoded, %encode ], [ %launched, %launch ], [ %copied, %copy ], [ %answered, %call ]
  %refused = icmp ne i32 %status, 0
  br i1 %refused, label %failed, label %next

failed:
  %error = sext i32 %status to i64
  ret i64 %error

done:
  ret i64 0
}
