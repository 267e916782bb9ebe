// SPDX-License-Identifier: Apache-2.0

// Answers of S3 servers are parsed strictly, and bad ones are refused without harm.

#include <gtest/gtest.h>

#include "store/s3_answers.hpp"
#include "support/expect_error.hpp"

namespace sparsecast::test {
namespace {

void expect_corrupt(const std::string& xml) {
  SCOPED_TRACE(xml.substr(0, 200));
  expect_error(ErrorCode::kCorrupt, [&] { parse_xml(xml); }, {"of XML"});
}

TEST(Xml, ReadsElementsTextAndReferences) {
  const XmlElement root = parse_xml(
      "\xEF\xBB\xBF<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<r a='1' b = \"<>\">\n "
      "<k>a&amp;b&lt;&#x41;&#66;&#228;</k>"
      "<s:e/><e x='y' /><k>second</k ></r>\n");
  EXPECT_EQ(root.name, "r");
  ASSERT_EQ(root.children.size(), 4U);
  EXPECT_EQ(root.text_of("k"), "a&b<AB\xC3\xA4");
  EXPECT_EQ(root.children[1].name, "s:e");
  EXPECT_EQ(root.text_of("e"), "");
  EXPECT_EQ(root.child("none"), nullptr);
  EXPECT_EQ(parse_xml("<a>&#x1F600;</a>").text, "\xF0\x9F\x98\x80");
}

TEST(Xml, RefusesEverythingElse) {
  for (const std::string xml : {"",
                                " ",
                                "text",
                                "<",
                                "<a",
                                "<a>",
                                "<a></b>",
                                "<a></a",
                                "<a/><b/>",
                                "<a/>x",
                                "<a b></a>",
                                "<a b=c/>",
                                "<a b='c/>",
                                "<a'/>",
                                "< a/>",
                                "</a>",
                                "<a>&unknown;</a>",
                                "<a>&amp</a>",
                                "<a>&#;</a>",
                                "<a>&#0;</a>",
                                "<a>&#xD800;</a>",
                                "<a>&#x110000;</a>",
                                "<a>&#99999999999999;</a>",
                                "<a>&#xg;</a>",
                                "<a><!-- comment --></a>",
                                "<?xml",
                                "<a><![CDATA[x]]></a>",
                                "<!DOCTYPE a [<!ENTITY b \"c\">]><a>&b;</a>",
                                "<a><?pi?></a>",
                                "<a>&"}) {
    expect_corrupt(xml);
  }
  expect_corrupt(std::string("<a\0/>", 5));
}

TEST(Xml, BoundsDepthAndElements) {
  std::string deep;
  for (std::size_t i = 0; i < 100'000; ++i) deep += "<a>";
  expect_corrupt(deep);
  std::string wide = "<a>";
  for (std::size_t i = 0; i < kMaxXmlElements; ++i) wide += "<b/>";
  expect_corrupt(wide + "</a>");
}

const std::string kEntry =
    "<Contents><Key>p/a&amp;b</Key><LastModified>2026-11-21T10:20:30.123Z</LastModified><ETag>&quot;x&quot;</ETag>"
    "<Size>18446744073709551615</Size><StorageClass>STANDARD</StorageClass></Contents>";

std::string listing(const std::string& entries, const std::string& end = "<IsTruncated>false</IsTruncated>") {
  return "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>b</Name>" + entries + end +
         "</ListBucketResult>";
}

TEST(S3Answers, ListingsAreReadPageByPage) {
  const S3Listing page = parse_s3_listing(
      listing(kEntry + kEntry, "<IsTruncated>true</IsTruncated><NextContinuationToken>t=</NextContinuationToken>"));
  ASSERT_EQ(page.entries.size(), 2U);
  EXPECT_EQ(page.entries[0].key, "p/a&b");
  EXPECT_EQ(page.entries[0].bytes, ~std::uint64_t{0});
  EXPECT_EQ(page.entries[0].modified.time_since_epoch(), std::chrono::seconds(1795256430));
  EXPECT_EQ(page.next, "t=");
  EXPECT_EQ(parse_s3_listing(listing("")).next, "");
}

TEST(S3Answers, ListingsThatLackAnythingAreRefused) {
  const auto replaced = [](const std::string& what, const std::string& by) {
    std::string entry = kEntry;
    return entry.replace(entry.find(what), what.size(), by);
  };
  for (const std::string& entry :
       {replaced("<Key>p/a&amp;b</Key>", ""), replaced("18446744073709551615", "18446744073709551616"),
        replaced("18446744073709551615", "-1"), replaced("18446744073709551615", ""), replaced("2026-11", "2026-13"),
        replaced("-21T", "-31T"), replaced("10:20", "10-20"), replaced("Z</Last", "</Last"),
        replaced("2026-11-21T10:20:30.123Z", "2026"), replaced("2026-", "9999-")}) {
    SCOPED_TRACE(entry);
    expect_error(ErrorCode::kCorrupt, [&] { parse_s3_listing(listing(entry)); });
  }
  for (const std::string end : {"", "<IsTruncated>yes</IsTruncated>", "<IsTruncated>true</IsTruncated>"}) {
    expect_error(ErrorCode::kCorrupt, [&] { parse_s3_listing(listing("", end)); });
  }
}

TEST(S3Answers, ErrorsAreReadWhereThereAreAny) {
  const auto error =
      parse_s3_error("<Error><Code>SlowDown</Code><Message>slow\n\x01" + std::string(1000, 'x') + "</Message></Error>");
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, "SlowDown");
  EXPECT_EQ(error->message.substr(0, 7), "slow  x");
  EXPECT_LE(error->message.size(), 300U);
  for (const std::string text : {"", "<html><body>502</body></html>", "<Error>", "busy"}) {
    EXPECT_FALSE(parse_s3_error(text)) << text;
  }
}

TEST(S3Answers, UploadsHaveAnId) {
  EXPECT_EQ(
      parse_s3_upload_id("<InitiateMultipartUploadResult><UploadId>id</UploadId></InitiateMultipartUploadResult>"),
      "id");
  expect_error(ErrorCode::kCorrupt,
               [] { parse_s3_upload_id("<InitiateMultipartUploadResult></InitiateMultipartUploadResult>"); });
  expect_error(ErrorCode::kCorrupt, [] { parse_s3_upload_id("<Other><UploadId>id</UploadId></Other>"); }, {"<Other>"});
  require_s3_completion("<CompleteMultipartUploadResult><Key>k</Key></CompleteMultipartUploadResult>");
  expect_error(ErrorCode::kCorrupt, [] { require_s3_completion(""); });
}

TEST(S3Answers, ContentRangesAreWholeOrNone) {
  const auto range = parse_content_range("bytes 3-9/10");
  ASSERT_TRUE(range);
  EXPECT_EQ(range->first, 3U);
  EXPECT_EQ(range->last, 9U);
  EXPECT_EQ(range->total, 10U);
  EXPECT_EQ(parse_content_range("bytes 0-0/*")->total, std::nullopt);
  for (const std::string text :
       {"", "bytes", "bytes 3-9", "bytes 9-3/10", "bytes 3-10/10", "bytes 3/9-10", "bytes */10", "bytes 3-9/",
        "bytes 3-9/x", "bytes 3-99999999999999999999/x", "chars 3-9/10"}) {
    EXPECT_FALSE(parse_content_range(text)) << text;
  }
}

}  // namespace
}  // namespace sparsecast::test
